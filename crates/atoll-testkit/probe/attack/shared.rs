//! B08: kernel objects through which one sandbox could pass data to another.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;

use crate::stream::fnv64;
use crate::sys::{Errno, call, owned, text};
use crate::{Args, Command, Outcome, nr, out, sys};

pub(crate) const COMMANDS: &[Command] = &[Command::new(
    "b08-shared",
    "write TOKEN (stays after `ready` until stdin ends) | look TOKEN",
    shared,
)];

const PLACES: [&str; 6] = [
    "/dev/shm",
    "/tmp",
    "/var/tmp",
    "/run",
    "/run/lock",
    "/dev/mqueue",
];
const IPC_CREAT: u64 = 0o1000;
const SIZE: u64 = 4096;

fn shared(args: &Args) -> Outcome {
    let token = args.text(1, "TOKEN")?;
    match args.text(0, "write or look")? {
        "write" => write(token),
        "look" => look(token),
        other => Err(format!("write or look, not {other}")),
    }
}

fn key(token: &str) -> u64 {
    fnv64(token.as_bytes()) & 0x7fff_ffff
}

fn address(token: &str) -> Result<SocketAddr, String> {
    SocketAddr::from_abstract_name(token).map_err(|problem| problem.to_string())
}

fn write(token: &str) -> Outcome {
    let mut made = Vec::new();
    for place in PLACES.iter().map(Path::new).filter(|place| place.is_dir()) {
        let path = place.join(token);
        out::answer(
            &format!("file:{}", place.display()),
            &std::fs::write(&path, token),
            |()| String::new(),
        );
        made.push(path);
    }
    let listener = UnixListener::bind_addr(&address(token)?);
    out::answer("abstract-socket", &listener, |_| String::new());
    let segment = call(nr::SHMGET, &[key(token), SIZE, IPC_CREAT | 0o666]);
    out::attempt("sysv-shm", segment);
    let queue = call(nr::MSGGET, &[key(token), IPC_CREAT | 0o666]);
    out::attempt("sysv-queue", queue);
    let name = sys::c_path(token);
    let posix = call(nr::MQ_OPEN, &[text(&name), 0o102, 0o666, 0]);
    out::attempt("posix-queue", posix);
    let _ = posix.map(owned);
    out::say("ready");
    while matches!(sys::read(0, &mut [0; 64]), Ok(1..) | Err(Errno::EINTR)) {}
    for path in made {
        let _ = std::fs::remove_file(path);
    }
    let _ = segment.map(|id| call(nr::SHMCTL, &[id, 0, 0]));
    let _ = queue.map(|id| call(nr::MSGCTL, &[id, 0, 0]));
    let _ = call(nr::MQ_UNLINK, &[text(&name)]);
    Ok(0)
}

fn look(token: &str) -> Outcome {
    for place in PLACES {
        let found = std::fs::read(Path::new(place).join(token));
        out::answer(&format!("file:{place}"), &found, |bytes| {
            format!("bytes={}", bytes.len())
        });
    }
    out::answer(
        "abstract-socket",
        &UnixStream::connect_addr(&address(token)?),
        |_| String::new(),
    );
    out::attempt("sysv-shm", call(nr::SHMGET, &[key(token), 0, 0]));
    out::attempt("sysv-queue", call(nr::MSGGET, &[key(token), 0]));
    let posix = call(nr::MQ_OPEN, &[text(&sys::c_path(token)), 0, 0, 0]);
    out::attempt("posix-queue", posix);
    let _: Result<_, Errno> = posix.map(owned);
    Ok(0)
}

//! C12: a sandbox that exhausts limited kernel resources, next to a neighbour and the host.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use atoll_model::SandboxId;
use atoll_testkit::{Scratch, attempts, probe, run};
use atoll_worker::StartedExec;
use rustix::fs::inotify;

use super::scene::{Scene, reach};
use super::{internet, reached};
use crate::harness::{Kind, World, probe_spec, stdout_text};

const CONNECTIONS: u32 = 64;
const PIDS: u32 = 64;
const USERS: [&str; 2] = ["root", "user"];
/// Resource, the error at its limit, and the limit.
const KINDS: [(&str, &str, usize); 3] = [
    // Default of `fs.inotify.max_user_instances`.
    ("inotify", "EMFILE", 128),
    ("terminals", "ENOSPC", 256),
    ("processes", "EAGAIN", PIDS as usize),
];

/// Starts a program that allocates a resource and holds it. Returns its output at the limit.
async fn take(world: &World, id: &SandboxId, user: &str, words: &[&str]) -> (StartedExec, String) {
    let exec = world.runtime.exec(id, probe_spec(words).user(user)).await;
    let mut exec = exec.unwrap();
    let mut text = String::new();
    while !(text.contains("held ") || text.contains("count=")) || !text.ends_with('\n') {
        let mut buffer = [0; 256];
        let read = exec.stdout.read(&mut buffer).await.unwrap();
        assert_ne!(read, 0, "{text}");
        text += &String::from_utf8_lossy(&buffer[..read]);
    }
    (exec, text)
}

/// Allocates every resource up to its limit in one sandbox, and holds all of them.
async fn everything(world: &World, id: &SandboxId, user: &str) -> Vec<StartedExec> {
    let words = ["exhaust", "1.1.1.1:80", "500"];
    let (exec, text) = take(world, id, user, &words).await;
    let expected = format!("connect errno ECONNREFUSED\nheld {CONNECTIONS}\n");
    assert_eq!(text, expected, "{user}");
    let mut held = vec![exec];
    assert_eq!(reached(world, id).await, [false, false]);
    for (kind, refusal, most) in KINDS {
        let (exec, text) = take(world, id, user, &["c12-take", kind, "2000", "hold"]).await;
        held.push(exec);
        let all = attempts(&text);
        assert_eq!(all[0].result, refusal, "{user} {kind} {text}");
        let count: usize = all[0].value("count").unwrap().parse().unwrap();
        assert!(count > most / 2 && count <= most, "{user} {kind} {count}");
    }
    held
}

/// A neighbour can still allocate one of each resource, as any user.
async fn neighbour_works(world: &World, id: &SandboxId) {
    for user in USERS {
        for (kind, ..) in KINDS {
            let text = world.probe(id, user, &["c12-take", kind, "1"]).await;
            assert_eq!(stdout_text(&text), format!("{kind} ok count=1\n"), "{user}");
        }
    }
    assert_eq!(reached(world, id).await, [true, true]);
    let names = probe_spec(&["resolve", "public.test"]).user("user");
    assert!(stdout_text(&world.exec(id, names).await).contains("1.1.1.1"));
}

fn host_works() {
    inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
    rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR).unwrap();
    reach("1.1.1.1:80").unwrap();
    assert!(run(&mut Command::new("true")).status.success());
}

#[test]
fn c12_greedy_sandbox_harms_neither_neighbour_nor_host() {
    Scene::with(async |_| {
        let world = World::open_as(|config| {
            config.network = Scene::network();
            config.network.connections = CONNECTIONS;
        });
        let world = world.await;
        let neighbour = world.sandbox_spec(Kind::Static, internet).await;
        for user in USERS {
            let greedy = |spec: &mut atoll_model::SandboxSpec| {
                internet(spec);
                spec.limits.pids = PIDS;
            };
            let greedy = world.sandbox_spec(Kind::Static, greedy).await;
            let held = everything(&world, &greedy, user).await;
            neighbour_works(&world, &neighbour).await;
            host_works();
            for exec in held {
                exec.kill().unwrap();
            }
            world.runtime.delete(&greedy).await.unwrap();
        }
        world.close().await;
    });
}

/// The control: two user namespaces that belong to the same user of the host share its inotify instances. Those of
/// sandboxes belong to a user each.
#[test]
fn c12_user_namespaces_of_one_owner_share_one_quota() {
    let place = Scratch::new();
    let program = place.join("probe");
    std::fs::copy(probe(), &program).unwrap();
    for path in [place.path(), &program] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let inside = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=61234", "--regid=61234", "--clear-groups"])
            .args(["unshare", "--user"])
            .arg(&program)
            .args(words);
        command
    };
    let mut first = inside(&["c12-take", "inotify", "2000", "hold"]);
    let mut first = first.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let output = first.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
    let second = run(&mut inside(&["c12-take", "inotify", "1"]));
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(line.starts_with("inotify errno EMFILE count="), "{line}");
    let second = String::from_utf8_lossy(&second.stdout).into_owned();
    assert_eq!(second, "inotify errno EMFILE count=0\n");
}

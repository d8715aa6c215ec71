//! Network operations from inside the sandbox. Each attempt prints one line, as in attacks.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use crate::sys::Errno;
use crate::{Args, Command, Outcome, out};

pub(crate) const COMMANDS: &[Command] = &[
    Command::new("interfaces", "", interfaces),
    Command::new("connect", "ADDRESS:PORT… (and hear 5 bytes)", connect),
    Command::new("send", "ADDRESS:PORT… (and hear an answer)", send),
    Command::new("resolve", "NAME… (of the first name server)", resolve),
    Command::new("greet", "ADDRESS:PORT (each who connects)", greet),
    Command::new("repeat", "ADDRESS:PORT (what that says)", repeat),
    Command::new("exhaust", "ADDRESS:PORT COUNT (and hold)", exhaust),
];

const TIMEOUT: Duration = Duration::from_secs(3);

fn addresses(args: &Args) -> Result<Vec<SocketAddr>, String> {
    let parse = |index| {
        let text = args.text(index, "ADDRESS:PORT")?;
        text.parse().map_err(|_| format!("no address: {text}"))
    };
    (0..args.all().len()).map(parse).collect()
}

fn report(what: &str, result: &io::Result<String>) {
    match result {
        Ok(detail) => out::ok(what, detail),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => out::refused(what, Errno(110), ""),
        Err(error) => out::refused(what, Errno::of(error), ""),
    }
}

fn interfaces(_: &Args) -> Outcome {
    let text = fs::read_to_string("/proc/net/dev").map_err(|error| error.to_string())?;
    for line in text.lines().skip(2) {
        out::say(line.split(':').next().unwrap_or_default().trim());
    }
    Ok(0)
}

fn reach(address: &SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    (&stream).read_exact(&mut [0; 5])?;
    Ok(stream)
}

fn connect(args: &Args) -> Outcome {
    for address in addresses(args)? {
        let reached = reach(&address).map(|_| String::new());
        report(&address.to_string(), &reached);
    }
    Ok(0)
}

fn send(args: &Args) -> Outcome {
    for address in addresses(args)? {
        let answer = (|| {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.set_read_timeout(Some(Duration::from_millis(500)))?;
            socket.connect(address)?;
            socket.send(b"hello")?;
            socket.recv(&mut [0; 64]).map(|_| String::new())
        })();
        report(&address.to_string(), &answer);
    }
    Ok(0)
}

/// Resolves a name with the first name server.
fn ask(name: &str) -> io::Result<String> {
    let text = fs::read_to_string("/etc/resolv.conf")?;
    let server = text
        .lines()
        .find_map(|line| line.strip_prefix("nameserver "));
    let server: Option<IpAddr> = server.and_then(|server| server.trim().parse().ok());
    let server = server.ok_or(io::ErrorKind::NotFound)?;
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(label.len() as u8);
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.connect((server, 53))?;
    socket.send(&query)?;
    let mut answer = [0; 512];
    let length = socket.recv(&mut answer)?;
    // Records whose name is the question's: 12 bytes, then the address.
    let records = answer[query.len()..length].chunks_exact(16);
    let found: Vec<String> = records
        .map(|record| {
            let [.., a, b, c, d] = *record else {
                return String::new();
            };
            Ipv4Addr::new(a, b, c, d).to_string()
        })
        .collect();
    Ok(format!("code={} {}", answer[3] & 15, found.join(",")))
}

fn resolve(args: &Args) -> Outcome {
    for index in 0..args.all().len() {
        let name = args.text(index, "NAME")?;
        report(name, &ask(name));
    }
    Ok(0)
}

fn greet(args: &Args) -> Outcome {
    let address = addresses(args)?.first().copied().ok_or("no address")?;
    let listener = TcpListener::bind(address).map_err(|error| error.to_string())?;
    out::say("listening");
    loop {
        let (mut stream, _) = listener.accept().map_err(|error| error.to_string())?;
        let _ = stream.write_all(b"hello");
    }
}

fn repeat(args: &Args) -> Outcome {
    let address = addresses(args)?.first().copied().ok_or("no address")?;
    let mut stream = TcpStream::connect(address).map_err(|error| error.to_string())?;
    let mut buffer = [0; 64];
    loop {
        let read = stream.read(&mut buffer);
        let read = read.map_err(|error| Errno::of(&error).to_string())?;
        if read == 0 {
            return Ok(0);
        }
        let written = stream.write_all(&buffer[..read]);
        written.map_err(|error| Errno::of(&error).to_string())?;
    }
}

fn exhaust(args: &Args) -> Outcome {
    let address: SocketAddr = args
        .text(0, "ADDRESS:PORT")?
        .parse()
        .map_err(|_| "no address")?;
    let count: usize = args.number(1, "COUNT")?;
    let mut held = Vec::new();
    for _ in 0..count {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => held.push(stream),
            Err(error) => {
                report("connect", &Err(error));
                break;
            }
        }
    }
    out::say(&format!("held {}", held.len()));
    loop {
        std::thread::park();
    }
}

//! Basic commands: standard streams, arguments, environment, exit codes.

use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::stream::{self, Fnv64};
use crate::sys::{self, Errno};
use crate::{Args, Command, Outcome, out, screen};

pub(crate) const COMMANDS: &[Command] = &[
    Command::new("true", "", |_| Ok(0)),
    Command::new("false", "", |_| Ok(1)),
    Command::new("exit", "CODE", |args| args.number(0, "CODE")),
    Command::new("echo", "WORD… (to stdout)", |args| words(1, args)),
    Command::new("err", "WORD… (to stderr)", |args| words(2, args)),
    Command::new("cat", "(stdin to stdout)", cat),
    Command::new("both", "N (N numbered lines on each stream)", both),
    Command::new("count", "(such lines until stdin ends)", count),
    Command::new(
        "full-screen",
        "(stops until stdin ends, each time)",
        full_screen,
    ),
    Command::new("spew", "BYTES [stderr]", spew),
    Command::new("hash", "(of stdin)", hash),
    Command::new("env", "", env),
    Command::new("args", "WORD…", arguments),
];

fn words(fd: i32, args: &Args) -> Outcome {
    let mut line = args
        .all()
        .iter()
        .map(|word| word.as_bytes())
        .collect::<Vec<_>>()
        .join(&b' ');
    line.push(b'\n');
    out::write_all(fd, &line).map_err(|errno| format!("write: {errno}"))?;
    Ok(0)
}

/// Reads stdin to its end in large pieces.
fn each_piece(mut work: impl FnMut(&[u8]) -> Result<(), Errno>) -> Result<(), String> {
    let mut buffer = vec![0; 128 << 10];
    loop {
        match sys::read(0, &mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => work(&buffer[..count]).map_err(|errno| format!("write: {errno}"))?,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(format!("read: {errno}")),
        }
    }
}

fn cat(_: &Args) -> Outcome {
    each_piece(|piece| out::write_all(1, piece))?;
    Ok(0)
}

fn both(args: &Args) -> Outcome {
    for number in 1..=args.number::<u64>(0, "N")? {
        out::say(&format!("out {number}"));
        out::complain(&format!("err {number}"));
    }
    Ok(0)
}

/// Writes as fast as possible; the last line is the count.
fn count(_: &Args) -> Outcome {
    let over = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&over);
    std::thread::spawn(move || {
        let _ = each_piece(|_| Ok(()));
        stop.store(true, Ordering::Relaxed);
    });
    let mut number = 0_u64;
    while !over.load(Ordering::Relaxed) {
        number += 1;
        out::say(&format!("out {number}"));
        out::complain(&format!("err {number}"));
    }
    out::say(&format!("end {number}"));
    Ok(0)
}

/// On a terminal input ends whenever `^D` is typed.
fn full_screen(_: &Args) -> Outcome {
    for stop in 0..screen::STOPS {
        let written = out::write_all(1, &screen::until_stop(stop));
        written.map_err(|errno| format!("write: {errno}"))?;
        each_piece(|_| Ok(()))?;
    }
    Ok(0)
}

fn spew(args: &Args) -> Outcome {
    let fd = if args.has("stderr") { 2 } else { 1 };
    let mut pattern = stream::pattern(args.number(0, "BYTES")?);
    let mut buffer = vec![0; 128 << 10];
    loop {
        let count = pattern
            .read(&mut buffer)
            .map_err(|problem| problem.to_string())?;
        if count == 0 {
            return Ok(0);
        }
        out::write_all(fd, &buffer[..count]).map_err(|errno| format!("write: {errno}"))?;
    }
}

fn hash(_: &Args) -> Outcome {
    let mut hash = Fnv64::default();
    each_piece(|piece| {
        hash.write_all(piece)
            .map_err(|problem: io::Error| Errno::of(&problem))
    })?;
    out::say(&format!("bytes {} fnv64 {:016x}", hash.bytes, hash.hash));
    Ok(0)
}

fn env(_: &Args) -> Outcome {
    for (name, value) in std::env::vars_os() {
        let line = [name.as_bytes(), b"=", value.as_bytes(), b"\n"].concat();
        out::write_all(1, &line).map_err(|errno| format!("write: {errno}"))?;
    }
    Ok(0)
}

fn arguments(_: &Args) -> Outcome {
    for (index, word) in std::env::args_os().enumerate() {
        out::say(&format!("{index} {}", word.as_bytes().escape_ascii()));
    }
    Ok(0)
}

//! D02: a path that alternates between a directory and a symbolic link to another place.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys::{Errno, HERE, c_path, text};
use crate::{Args, Command, Outcome, nr, out, sys};

pub(crate) const COMMANDS: &[Command] = &[Command::new(
    "d02-race",
    "DIR TARGET (DIR/x: a directory, or a link to TARGET, until stdin ends)",
    race,
)];

fn race(args: &Args) -> Outcome {
    const RENAME_EXCHANGE: u64 = 2;
    let directory = args.path(0, "DIR")?;
    let (real, link) = (directory.join("x"), directory.join("y"));
    let failed =
        |problem: std::io::Error| format!("{}: {}", directory.display(), Errno::of(&problem));
    fs::create_dir_all(&real).map_err(failed)?;
    fs::write(real.join("f"), "inside").map_err(failed)?;
    symlink(args.raw(1, "TARGET")?, &link).map_err(failed)?;
    out::say("ready");
    let (real, link) = (c_path(&real), c_path(&link));
    let over = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&over);
    std::thread::spawn(move || {
        while matches!(sys::read(0, &mut [0; 64]), Ok(1..) | Err(Errno::EINTR)) {}
        stop.store(true, Ordering::Relaxed);
    });
    let mut swaps = 0_u64;
    while !over.load(Ordering::Relaxed) {
        for _ in 0..1024 {
            let answer = sys::call(
                nr::RENAMEAT2,
                &[HERE, text(&real), HERE, text(&link), RENAME_EXCHANGE],
            );
            // The operation under test may remove either name: restore it and continue.
            if answer.is_ok() {
                swaps += 1;
            } else {
                let (real, link) = (directory.join("x"), directory.join("y"));
                let _ = fs::create_dir_all(&real);
                let _ = fs::write(real.join("f"), "inside");
                let _ = symlink(args.raw(1, "TARGET")?, &link);
            }
        }
        out::ok("swaps", &swaps.to_string());
    }
    Ok(0)
}

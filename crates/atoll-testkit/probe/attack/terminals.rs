//! A18: input injection into a terminal of another process.

use crate::sys::{fd, open, owned, refer, refer_mut};
use crate::{Args, Command, Outcome, nr, out, sys};

pub(crate) const COMMANDS: &[Command] = &[Command::new(
    "a18-tty",
    "(TIOCSTI and its like, on stdin and a fresh pty)",
    type_in,
)];

const TIOCSTI: u64 = 0x5412;
const TIOCLINUX: u64 = 0x541c;
const TIOCCONS: u64 = 0x541d;
const TIOCSETD: u64 = 0x5423;
const TIOCSCTTY: u64 = 0x540e;
const FIONREAD: u64 = 0x541b;
const TIOCSPTLCK: u64 = 0x4004_5431;
const TIOCGPTPEER: u64 = 0x5441;

/// The kernel looks at 32 bits of the command; a filter that compares 64 would let this pass.
const HIGH: u64 = 0xdead_beef_0000_0000;

fn each_command(name: &str, terminal: u64) {
    let character = b'#';
    let shift_state = 6_u8;
    let discipline = 0_i32;
    for (command, number, argument) in [
        ("TIOCSTI", TIOCSTI, refer(&character)),
        ("TIOCLINUX", TIOCLINUX, refer(&shift_state)),
        ("TIOCCONS", TIOCCONS, 0),
        ("TIOCSETD", TIOCSETD, refer(&discipline)),
    ] {
        for (suffix, high) in [("", 0), ("+high", HIGH)] {
            let answer = sys::call(nr::IOCTL, &[terminal, number | high, argument]);
            out::attempt(&format!("{name}:{command}{suffix}"), answer);
        }
    }
    let mut waiting = 0_i32;
    if sys::call(nr::IOCTL, &[terminal, FIONREAD, refer_mut(&mut waiting)]).is_ok() {
        out::ok(&format!("{name}:typed"), &format!("bytes={waiting}"));
    }
}

fn type_in(_: &Args) -> Outcome {
    each_command("stdin", 0);
    match open("/dev/tty", 2) {
        Ok(terminal) => each_command("controlling", fd(&terminal)),
        Err(errno) => out::refused("controlling", errno, ""),
    }
    let master = match open("/dev/ptmx", 2 | 0o400) {
        Ok(master) => master,
        Err(errno) => {
            out::refused("ptmx", errno, "");
            return Ok(0);
        }
    };
    out::ok("ptmx", "");
    let unlock = 0_i32;
    let _ = sys::call(nr::IOCTL, &[fd(&master), TIOCSPTLCK, refer(&unlock)]);
    match sys::call(nr::IOCTL, &[fd(&master), TIOCGPTPEER, 2 | 0o400]) {
        Err(errno) => out::refused("pty-peer", errno, ""),
        Ok(peer) => {
            let peer = owned(peer);
            sys::apart("pty", || {
                let _ = sys::call(nr::SETSID, &[]);
                out::attempt(
                    "pty:TIOCSCTTY",
                    sys::call(nr::IOCTL, &[fd(&peer), TIOCSCTTY, 0]),
                );
                // Raw mode, so that input can be counted without a newline.
                let settings = [0_u8; 64];
                let _ = sys::call(nr::IOCTL, &[fd(&peer), 0x5402, refer(&settings)]);
                each_command("pty", fd(&peer));
                let gsm = 21_i32;
                out::attempt(
                    "pty:TIOCSETD-GSM",
                    sys::call(nr::IOCTL, &[fd(&peer), TIOCSETD, refer(&gsm)]),
                );
            });
        }
    }
    Ok(0)
}

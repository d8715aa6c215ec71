//! Creates and inspects files from inside the sandbox.

use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use crate::sys::{self, Errno};
use crate::{Args, Command, Outcome, nr, out, stream};

pub(crate) const COMMANDS: &[Command] = &[
    Command::new("read", "PATH", read),
    Command::new("write", "PATH TEXT", write),
    Command::new("stat", "PATH (does not follow a link)", stat),
    Command::new("ls", "PATH", list),
    Command::new("mkfile", "PATH BYTES (the pattern of spew)", make_file),
    Command::new(
        "scribble",
        "DIRECTORY SEED (writes at random into `there`, adds to `end`, until there is `stop`)",
        scribble,
    ),
    Command::new("mkdir", "PATH", |args| {
        done(args, |path| fs::create_dir(path))
    }),
    Command::new("touch", "PATH", |args| {
        done(args, |path| {
            fs::File::options()
                .append(true)
                .create(true)
                .open(path)
                .map(drop)
        })
    }),
    Command::new("link", "TARGET PATH (symbolic)", |args| {
        two(args, |target, path| symlink(target, path))
    }),
    Command::new("hardlink", "TARGET PATH", |args| {
        two(args, |target, path| fs::hard_link(target, path))
    }),
    Command::new("move", "FROM TO", |args| {
        two(args, |from, to| fs::rename(from, to))
    }),
    Command::new(
        "remove",
        "PATH (a file, or a directory and all in it)",
        |args| {
            done(args, |path| {
                if fs::symlink_metadata(path)?.is_dir() {
                    fs::remove_dir_all(path)
                } else {
                    fs::remove_file(path)
                }
            })
        },
    ),
    Command::new("chmod", "PATH OCTAL", chmod),
    Command::new("fifo", "PATH", |args| done(args, fifo)),
    Command::new("socket", "PATH (a bound unix socket)", |args| {
        done(args, |path| {
            std::os::unix::net::UnixListener::bind(path).map(drop)
        })
    }),
];

fn with_path<T>(path: &Path, answer: io::Result<T>) -> Result<T, String> {
    answer.map_err(|problem| format!("{}: {}", path.display(), Errno::of(&problem)))
}

fn done(args: &Args, work: fn(&Path) -> io::Result<()>) -> Outcome {
    let path = args.path(0, "PATH")?;
    with_path(path, work(path))?;
    Ok(0)
}

fn two(args: &Args, work: fn(&Path, &Path) -> io::Result<()>) -> Outcome {
    let path = args.path(1, "PATH")?;
    with_path(path, work(args.path(0, "TARGET")?, path))?;
    Ok(0)
}

fn read(args: &Args) -> Outcome {
    let path = args.path(0, "PATH")?;
    let file = sys::open(path, 0).map_err(|errno| format!("{}: {errno}", path.display()))?;
    let mut buffer = vec![0; 128 << 10];
    loop {
        let count = sys::read(sys::fd(&file), &mut buffer)
            .map_err(|errno| format!("{}: {errno}", path.display()))?;
        if count == 0 {
            return Ok(0);
        }
        out::write_all(1, &buffer[..count]).map_err(|errno| format!("write: {errno}"))?;
    }
}

fn write(args: &Args) -> Outcome {
    let path = args.path(0, "PATH")?;
    with_path(path, fs::write(path, args.raw(1, "TEXT")?.as_bytes()))?;
    Ok(0)
}

fn make_file(args: &Args) -> Outcome {
    let path = args.path(0, "PATH")?;
    let mut pattern = stream::pattern(args.number(1, "BYTES")?);
    with_path(
        path,
        fs::File::create(path).and_then(|mut file| io::copy(&mut pattern, &mut file)),
    )?;
    Ok(0)
}

fn scribble(args: &Args) -> Outcome {
    let place = args.path(0, "DIRECTORY")?;
    let mut scribbles = stream::Scribbles::new(args.number(1, "SEED")?);
    let (there, end, stop) = (place.join("there"), place.join("end"), place.join("stop"));
    let file = with_path(&there, fs::File::create_new(&there))?;
    with_path(&there, file.set_len(stream::SCRIBBLED))?;
    let mut added = with_path(
        &end,
        fs::File::options().append(true).create_new(true).open(&end),
    )?;
    let (mut bytes, mut steps) = (Vec::new(), 0_u64);
    while fs::symlink_metadata(&stop).is_err() {
        let at = scribbles.step(&mut bytes);
        with_path(&there, file.write_all_at(&bytes, at))?;
        with_path(&end, added.write_all(stream::Scribbles::appended(&bytes)))?;
        steps += 1;
    }
    out::say(&format!("steps {steps}"));
    Ok(0)
}

fn chmod(args: &Args) -> Outcome {
    let path = args.path(0, "PATH")?;
    let mode =
        u32::from_str_radix(args.text(1, "OCTAL")?, 8).map_err(|problem| problem.to_string())?;
    with_path(
        path,
        fs::set_permissions(path, fs::Permissions::from_mode(mode)),
    )?;
    Ok(0)
}

fn fifo(path: &Path) -> io::Result<()> {
    const S_IFIFO: u64 = 0o010_000;
    sys::call(
        nr::MKNODAT,
        &[sys::HERE, sys::text(&sys::c_path(path)), S_IFIFO | 0o644, 0],
    )
    .map(drop)
    .map_err(|errno| io::Error::from_raw_os_error(errno.0))
}

/// `regular`, `directory`, `symlink`, `char`, `block`, `fifo` or `socket`.
pub(crate) fn kind(of: fs::FileType) -> &'static str {
    match () {
        () if of.is_file() => "regular",
        () if of.is_dir() => "directory",
        () if of.is_symlink() => "symlink",
        () if of.is_char_device() => "char",
        () if of.is_block_device() => "block",
        () if of.is_fifo() => "fifo",
        () => "socket",
    }
}

/// `MAJOR:MINOR` of a device number.
pub(crate) fn device(number: u64) -> String {
    let major = (number >> 8 & 0xfff) | (number >> 32 & !0xfff);
    let minor = (number & 0xff) | (number >> 12 & !0xff & 0xffff_ffff);
    format!("{major}:{minor}")
}

fn stat(args: &Args) -> Outcome {
    let path = args.path(0, "PATH")?;
    let about = with_path(path, fs::symlink_metadata(path))?;
    let mut line = format!(
        "kind {} mode {:04o} uid {} gid {} size {} nlink {} dev {} ino {} rdev {} mtime {}.{:09}",
        kind(about.file_type()),
        about.mode() & 0o7777,
        about.uid(),
        about.gid(),
        about.size(),
        about.nlink(),
        device(about.dev()),
        about.ino(),
        device(about.rdev()),
        about.mtime(),
        about.mtime_nsec(),
    );
    if let Ok(target) = fs::read_link(path) {
        line.push_str(" target ");
        line.push_str(&target.to_string_lossy());
    }
    out::say(&line);
    Ok(0)
}

fn list(args: &Args) -> Outcome {
    let path = args.path(0, "PATH")?;
    let mut lines = Vec::new();
    for entry in with_path(path, fs::read_dir(path))? {
        let entry = with_path(path, entry)?;
        let kind = entry.file_type().map_or("unknown", kind);
        lines.push(format!(
            "{} {kind}",
            entry.file_name().as_bytes().escape_ascii()
        ));
    }
    lines.sort();
    for line in lines {
        out::say(&line);
    }
    Ok(0)
}

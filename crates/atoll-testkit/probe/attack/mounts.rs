//! A05, A09: the mount table, and every system call that changes it.

use std::path::{Path, PathBuf};

use super::Nook;
use super::trees::masked;
use crate::sys::{HERE, c_path, fd, owned, refer, text};
use crate::{Args, Command, Outcome, mountinfo, nr, out, sys};

pub(crate) const COMMANDS: &[Command] = &[
    Command::new("a05-mounts", "(the mount table)", table),
    Command::inside(
        "a09-mount",
        "(mount, unmount, remount, bind, move, new mount calls)",
        change,
    ),
];

const MS_RDONLY: u64 = 1;
const MS_REMOUNT: u64 = 32;
const MS_BIND: u64 = 4096;
const MS_MOVE: u64 = 8192;
const MS_REC: u64 = 16_384;
const MS_SHARED: u64 = 1 << 20;
const MNT_DETACH: u64 = 2;

fn table(_: &Args) -> Outcome {
    for mount in mountinfo::mounts() {
        let word = |path: &Path| out::word(&path.to_string_lossy());
        out::ok(
            &format!("mount:{}", mount.point.display()),
            &format!(
                "{} {} source={} root={} super={}",
                mount.kind,
                mount.options,
                out::word(&mount.source),
                word(&mount.root),
                mount.super_options
            ),
        );
    }
    Ok(0)
}

fn mount(
    source: &str,
    target: impl AsRef<Path>,
    kind: &str,
    flags: u64,
) -> Result<u64, sys::Errno> {
    let (source, target, kind) = (c_path(source), c_path(target), c_path(kind));
    sys::call(
        nr::MOUNT,
        &[text(&source), text(&target), text(&kind), flags, 0],
    )
}

fn unmount(target: impl AsRef<Path>) -> Result<u64, sys::Errno> {
    sys::call(nr::UMOUNT2, &[text(&c_path(target)), MNT_DETACH])
}

/// Mounts that it made itself, each taken away again.
fn fresh(place: &Path) {
    for kind in [
        "tmpfs", "proc", "sysfs", "devpts", "mqueue", "devtmpfs", "overlay", "ramfs", "debugfs",
        "ext4", "fuse",
    ] {
        if out::attempt(&format!("mount:{kind}"), mount("none", place, kind, 0)) {
            let _ = unmount(place);
        }
    }
    let bind = |source: &str, flags: u64, name: &str| {
        if out::attempt(
            &format!("{name}:{source}"),
            mount(source, place, "none", flags),
        ) {
            if source == "/proc" {
                masked(&format!("{name}-below"), place);
            }
            let _ = unmount(place);
        }
    };
    for source in ["/", "/proc", "/dev"] {
        bind(source, MS_BIND, "bind");
        bind(source, MS_BIND | MS_REC, "rbind");
    }
    for source in ["/proc", "/dev"] {
        if out::attempt(
            &format!("move:{source}"),
            mount(source, place, "none", MS_MOVE),
        ) {
            let _ = mount(&place.to_string_lossy(), source, "none", MS_MOVE);
        }
    }
}

/// The calls of the new mount interface.
fn modern(place: &Path) {
    const OPEN_TREE_CLONE: u64 = 1;
    const FSCONFIG_CMD_CREATE: u64 = 6;
    const MOVE_MOUNT_F_EMPTY_PATH: u64 = 4;
    let place = c_path(place);
    for kind in [c"tmpfs", c"proc"] {
        let name = kind.to_string_lossy();
        let context = sys::call(nr::FSOPEN, &[text(kind), 0]);
        out::attempt(&format!("fsopen:{name}"), context);
        let Ok(context) = context.map(owned) else {
            continue;
        };
        let made = sys::call(nr::FSCONFIG, &[fd(&context), FSCONFIG_CMD_CREATE, 0, 0, 0]);
        out::attempt(&format!("fsconfig-create:{name}"), made);
        let tree = sys::call(nr::FSMOUNT, &[fd(&context), 0, 0]);
        out::attempt(&format!("fsmount:{name}"), tree);
        let Ok(tree) = tree.map(owned) else { continue };
        let words = [
            fd(&tree),
            text(c""),
            HERE,
            text(&place),
            MOVE_MOUNT_F_EMPTY_PATH,
        ];
        if out::attempt(
            &format!("move_mount:{name}"),
            sys::call(nr::MOVE_MOUNT, &words),
        ) {
            let _ = sys::call(nr::UMOUNT2, &[text(&place), MNT_DETACH]);
        }
    }
    out::attempt("fsmount:bad", sys::call(nr::FSMOUNT, &[u64::MAX, 0, 0]));
    out::attempt(
        "move_mount:bad",
        sys::call(
            nr::MOVE_MOUNT,
            &[u64::MAX, text(c""), HERE, text(&place), 4],
        ),
    );
    for (name, path) in [("/", c"/"), ("/proc", c"/proc")] {
        let tree = sys::call(nr::OPEN_TREE, &[HERE, text(path), OPEN_TREE_CLONE]);
        out::attempt(&format!("open_tree-clone:{name}"), tree);
        let _ = tree.map(owned);
    }
    let context = sys::call(nr::FSPICK, &[HERE, text(c"/"), 0]);
    out::attempt("fspick:/", context);
    let _ = context.map(owned);
}

/// Remounts read-only mounts as writable, and unmounts those that mask a path.
fn loosen() {
    #[repr(C)]
    struct Attributes {
        set: u64,
        clear: u64,
        propagation: u64,
        namespace: u64,
    }
    let attributes = Attributes {
        set: 0,
        clear: MS_RDONLY,
        propagation: 0,
        namespace: 0,
    };
    let mut points: Vec<PathBuf> = Vec::new();
    for found in mountinfo::mounts() {
        if found.is_read_only() {
            let name = found.point.display().to_string();
            out::attempt(
                &format!("remount-bind-rw:{name}"),
                mount("none", &found.point, "none", MS_REMOUNT | MS_BIND),
            );
            out::attempt(
                &format!("remount-rw:{name}"),
                mount("none", &found.point, "none", MS_REMOUNT),
            );
            let path = c_path(&found.point);
            let words = [HERE, text(&path), 0, refer(&attributes), 32];
            out::attempt(
                &format!("mount_setattr-rw:{name}"),
                sys::call(nr::MOUNT_SETATTR, &words),
            );
        }
        points.push(found.point);
    }
    let words = [HERE, text(c"/"), 0, refer(&attributes), 32];
    out::attempt("mount_setattr:/", sys::call(nr::MOUNT_SETATTR, &words));
    out::attempt(
        "mount-shared:/",
        mount("none", "/", "none", MS_SHARED | MS_REC),
    );
    for over in ["/proc/kcore", "/proc/sys", "/proc/keys", "/proc/timer_list"] {
        let source = if Path::new(over).is_dir() {
            "/proc/self"
        } else {
            "/proc/version"
        };
        if out::attempt(
            &format!("bind-over:{over}"),
            mount(source, over, "none", MS_BIND),
        ) {
            let _ = unmount(over);
        }
    }
    // The last mounts first; `/` and the mount of `/proc` itself come at the very end, elsewhere.
    for point in points.iter().rev().filter(|point| {
        !["/", "/proc"]
            .iter()
            .any(|keep| Path::new(keep) == point.as_path())
    }) {
        out::attempt(&format!("umount:{}", point.display()), unmount(point));
    }
}

fn change(_: &Args) -> Outcome {
    masked("masked-before", Path::new("/proc"));
    if let Some(nook) = Nook::new() {
        fresh(&nook.0);
        modern(&nook.0);
    } else {
        out::skipped("place", "no directory can be written; using /");
        fresh(Path::new("/"));
        modern(Path::new("/"));
    }
    loosen();
    masked("masked-after", Path::new("/proc"));
    out::attempt("umount-lazy:/proc", unmount("/proc"));
    masked("masked-last", Path::new("/proc"));
    Ok(0)
}

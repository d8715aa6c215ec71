//! Configuration of PID 1: the part of the plan that is carried out inside.

use super::wire;

/// Configuration of a sandbox for its PID 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Boot {
    /// Host name.
    pub hostname: String,
    /// The sandbox's id, for `ATOLL_SANDBOX_ID`.
    pub sandbox: String,
    /// Small files that replace files of the kernel: path and contents. A path that ends in `/` is an empty directory.
    pub views: Vec<(String, String)>,
    /// Mounts in order; targets are below the root.
    pub mounts: Vec<Mount>,
    /// The capability bounding set, as a mask.
    pub capabilities: u64,
    /// Set `no_new_privs` on every exec.
    pub no_new_privs: bool,
    /// The system call filter PID 1 installs, as instructions; empty for none.
    pub filter: Vec<u8>,
    /// Processors the sandbox runs on; empty for all.
    pub processors: Vec<u32>,
    /// Soft and hard limit of open files.
    pub open_files: (u64, u64),
    /// Bring the loopback interface up.
    pub loopback: bool,
    /// Unshare the cgroup namespace once attached.
    pub cgroup_namespace: bool,
    /// Close every inherited descriptor in each exec.
    pub close_descriptors: bool,
    /// The template's default user, if its `/etc/passwd` does not contain it.
    pub user: User,
}
wire!(struct Boot {
    hostname, sandbox, views, mounts, capabilities, no_new_privs, filter, processors,
    open_files, loopback, cgroup_namespace, close_descriptors, user
});

/// The size of a sandbox as its programs see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Size {
    /// Changed contents of views (see [`Boot::views`]). Only files that exist since the start.
    pub views: Vec<(String, String)>,
    /// Processors the sandbox runs on: never empty.
    pub processors: Vec<u32>,
}
wire!(struct Size { views, processors });

/// A user as the template declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Login name.
    pub name: String,
    /// User id inside.
    pub uid: u32,
    /// Group id inside.
    pub gid: u32,
    /// Home directory.
    pub home: String,
}
wire!(struct User { name, uid, gid, home });

/// One mount inside the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Source of the mount.
    pub source: Source,
    /// Absolute path below the sandbox's root.
    pub target: String,
    /// `MOUNT_ATTR_*` flags.
    pub attributes: u32,
}
wire!(struct Mount { source, target, attributes });

/// Source of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A new file system of this type with these options, created inside.
    New {
        /// The type: `proc`, `tmpfs`, `devpts`, `mqueue`.
        kind: String,
        /// Its options.
        options: Vec<(String, String)>,
    },
    /// The sandbox's device nodes, created outside; the descriptor is sent with `Go`.
    Devices,
    /// The sandbox's devpts, created outside; the descriptor is sent with `Go`.
    Terminals,
    /// A file or directory of the views (see [`Boot::views`]).
    View {
        /// Its path among the views.
        path: String,
    },
    /// A directory or file of the host that the caller requested; the descriptor is sent with `Go`.
    Handed {
        /// Path on the host, for snapshots of plans and for faults.
        path: String,
    },
    /// The target itself, mounted again with other attributes.
    Again,
}
wire!(enum Source {
    0 => New { kind, options }, 1 => Devices, 2 => View { path }, 3 => Handed { path }, 4 => Again,
    5 => Terminals
});

//! The one protocol between server, keeper and PID 1.
//!
//! Messages travel over `SOCK_SEQPACKET` sockets: one message, one packet, descriptors beside it.
//! Descriptors go *in* (server → keeper → sandbox); the only ones that come out are the keeper's,
//! which is ours. What PID 1 says is treated as hostile: bounded, decoded without panics, and
//! never accompanied by descriptors.
//!
//! Both ends are mostly built from one source, but a server may meet the keeper, and the sandboxes, of
//! another version. Each says in its first message what it speaks: up to [`VERSION`], from [`OLDEST`] on. Where the
//! two have a version in common they speak with each other, and neither says what the other's version does not
//! have. The form of the two `Hello`s, and of the `Hold` for nobody, never changes.

mod codec;
mod describe;
mod socket;
mod watch;

#[cfg(test)]
mod tests;

pub use codec::{Decode, Encode, Malformed};
pub use describe::{Attributes, Described, Target};
pub use socket::{Channel, Packet, pair};
pub use watch::Change;

pub(crate) use codec::wire;

/// The version of everything in this module. Raise it with any change to a message.
pub const VERSION: u32 = 6;
/// The oldest version that this one still speaks. Raise it when a message changes or goes, not when one is added.
pub const OLDEST: u32 = 5;

/// The versions that somebody speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spoken {
    /// The newest, its own.
    pub version: u32,
    /// The oldest.
    pub oldest: u32,
}

impl Spoken {
    /// What we speak.
    pub const OURS: Self = Self {
        version: VERSION,
        oldest: OLDEST,
    };

    /// We have a version in common.
    pub fn is_understood(self) -> bool {
        self.version >= OLDEST && self.oldest <= VERSION
    }
}

impl Encode for Spoken {
    fn encode(&self, out: &mut Vec<u8>) {
        self.version.encode(out);
        self.oldest.encode(out);
    }
}

impl Decode for Spoken {
    /// Version 5 said its own alone; later ones may say more than we know of.
    fn decode(input: &mut &[u8]) -> Result<Self, Malformed> {
        let version = u32::decode(input)?;
        let oldest = if input.is_empty() {
            version
        } else {
            u32::decode(input)?
        };
        *input = &[];
        Ok(Self { version, oldest })
    }
}

/// A step of the set-up that failed, told by its name and the kernel's errno.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What was being done, with the path it was done to.
    pub step: String,
    /// The kernel's answer.
    pub errno: i32,
}
wire!(struct Fault { step, errno });

/// What a server says to its keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToKeeper {
    /// The first message. Descriptors: what the keeper is to hold as long as it lives (locks), if it has
    /// just been started.
    Hello {
        /// The server's [`VERSION`].
        version: u32,
    },
    /// Clone a PID 1. Descriptors: its control socket; the server's end of it, to be held; its cgroup2
    /// leaf if there is one.
    Spawn {
        /// The server's name for the sandbox in all later messages.
        token: u32,
        /// The sandbox's own name, for a server that comes later.
        name: String,
        /// The first outside id of the sandbox's range.
        id_base: u32,
        /// How many ids it has.
        id_count: u32,
        /// `CLONE_NEW*` flags.
        namespaces: u64,
    },
    /// Hold these descriptors (an exec's streams) for a server that comes later.
    Hold {
        /// The sandbox.
        token: u32,
        /// The exec.
        request: u32,
        /// Execs whose descriptors are not needed any more.
        released: Vec<u32>,
    },
}
wire!(enum ToKeeper {
    0 => Hello { version },
    1 => Spawn { token, name, id_base, id_count, namespaces },
    2 => Hold { token, request, released },
});

/// What a keeper says to its server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromKeeper {
    /// The answer to `Hello`: what the keeper speaks, and its sandboxes. Descriptors: what it holds as long as it lives.
    Hello(Spoken),
    /// PID 1 exists and its ids are mapped. Descriptor: its user namespace, if it has one.
    Spawned {
        /// The token of the request.
        token: u32,
        /// PID 1's pid as the host sees it.
        pid: i32,
    },
    /// It could not be cloned.
    Refused {
        /// The token of the request.
        token: u32,
        /// What failed.
        fault: Fault,
    },
    /// PID 1 has ended and was reaped; all its processes are gone.
    Died {
        /// The token of the sandbox.
        token: u32,
        /// The raw wait status.
        status: i32,
    },
    /// After `Hello`, each sandbox. Descriptor: the server's end of PID 1's control socket. Those that
    /// ended while there was no server have pid 0, and `Died` follows.
    Sandbox {
        /// Its token.
        token: u32,
        /// Its name.
        name: String,
        /// PID 1's pid as the host sees it.
        pid: i32,
    },
    /// After its sandbox, what is held of an exec. Descriptors: those of `Hold`.
    Held {
        /// The sandbox.
        token: u32,
        /// The exec.
        request: u32,
    },
    /// All sandboxes have been told.
    Complete,
}
wire!(enum FromKeeper {
    0 => Hello(spoken),
    1 => Spawned { token, pid },
    2 => Refused { token, fault },
    3 => Died { token, status },
    4 => Sandbox { token, name, pid },
    5 => Held { token, request },
    6 => Complete,
});

/// What a server says to a sandbox's PID 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToInit {
    /// What kind of sandbox to become; everything that can be prepared without the root is.
    Boot(Boot),
    /// Become it. Descriptors: the root, then one for each mount whose source is `Devices`,
    /// `Terminals` or `Handed`, in order.
    Go,
    /// Start a program. Descriptors: those of its streams, then the cgroup2 leaf if there is one. Answered by
    /// `Started` or `Refused`.
    Exec {
        /// Names this exec in all later messages.
        request: u32,
        /// The program.
        exec: Exec,
        /// Execs whose end has been written down.
        forget: Vec<u32>,
    },
    /// Do file work in a helper. Descriptors: the answer socket, then the data pipe if there is one.
    File {
        /// Names this call in `Cancel`.
        request: u32,
        /// What to do.
        call: FileCall,
    },
    /// Send a signal to an exec's process group.
    Signal {
        /// The exec.
        request: u32,
        /// The signal's number.
        signal: i32,
    },
    /// Kill a file helper whose caller has gone.
    Cancel {
        /// The file call.
        request: u32,
    },
    /// A new server asks what there is: `Started` for each living exec, `Ended` for each that nobody
    /// asked to forget, then `Reported`.
    Report {
        /// Tells this question from one of an earlier server, whose answer may still be on the way.
        number: u64,
    },
    /// The sandbox's limits are others now: tell programs so. Answered by `Resized`.
    Resize {
        /// Comes back in the answer.
        request: u32,
        /// What to tell. Programs that run keep their processors.
        size: Size,
    },
}
wire!(enum ToInit {
    0 => Boot(boot),
    1 => Go,
    2 => Exec { request, exec, forget },
    3 => File { request, call },
    4 => Signal { request, signal },
    5 => Cancel { request },
    6 => Report { number },
    7 => Resize { request, size },
});

/// What PID 1 says. Hostile by assumption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromInit {
    /// An exec would work now.
    Ready,
    /// The sandbox could not be set up; PID 1 ends.
    Fault(Fault),
    /// The program runs.
    Started {
        /// The exec.
        request: u32,
        /// Its pid inside the sandbox.
        pid: i32,
    },
    /// It does not.
    Refused {
        /// The exec.
        request: u32,
        /// Which part of the request could not be met.
        part: Part,
        /// The kernel's answer.
        errno: i32,
    },
    /// The exec's first process has ended.
    Ended {
        /// The exec.
        request: u32,
        /// The raw wait status.
        status: i32,
    },
    /// The end of the answer to `Report`.
    Reported {
        /// The question's.
        number: u64,
    },
    /// Programs are told the new size, or not all of it.
    Resized {
        /// The request's.
        request: u32,
        /// The kernel's answer; 0 if all went well.
        errno: i32,
    },
}
wire!(enum FromInit {
    0 => Ready,
    1 => Fault(fault),
    2 => Started { request, pid },
    3 => Refused { request, part, errno },
    4 => Ended { request, status },
    5 => Reported { number },
    6 => Resized { request, errno },
});

/// The part of an exec request that could not be met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The user is not known in the sandbox.
    User,
    /// The working directory is not there or not allowed.
    Directory,
    /// The program is not there or not executable.
    Program,
    /// Something of ours.
    Setup,
}
wire!(enum Part { 0 => User, 1 => Directory, 2 => Program, 3 => Setup });

/// Everything PID 1 must know to become a sandbox; the part of the plan that is done inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Boot {
    /// The host name inside.
    pub hostname: String,
    /// The sandbox's id, for `ATOLL_SANDBOX_ID`.
    pub sandbox: String,
    /// Small files of the sandbox's own that stand for files of the kernel: path and contents. A
    /// path that ends in `/` is an empty directory.
    pub views: Vec<(String, String)>,
    /// What is mounted, in order; targets are below the root.
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
    /// The template's own user, where its `/etc/passwd` does not say.
    pub user: User,
}
wire!(struct Boot {
    hostname, sandbox, views, mounts, capabilities, no_new_privs, filter, processors,
    open_files, loopback, cgroup_namespace, close_descriptors, user
});

/// What programs are told of a sandbox's size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Size {
    /// Views (see [`Boot::views`]) that say something else now. Only files that were there from the start.
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
    /// What is mounted.
    pub source: Source,
    /// Where, as an absolute path below the sandbox's root.
    pub target: String,
    /// `MOUNT_ATTR_*` flags.
    pub attributes: u32,
}
wire!(struct Mount { source, target, attributes });

/// Where a mount comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A fresh file system of this type with these options, made inside.
    New {
        /// The type: `proc`, `tmpfs`, `devpts`, `mqueue`.
        kind: String,
        /// Its options.
        options: Vec<(String, String)>,
    },
    /// The sandbox's own device nodes, made outside; their descriptor comes with `Go`.
    Devices,
    /// The sandbox's own terminals, made outside; their descriptor comes with `Go`.
    Terminals,
    /// A file or directory of the sandbox's own views (see [`Boot::views`]).
    View {
        /// Its path among the views.
        path: String,
    },
    /// A directory or file of the host, because the caller asked; its descriptor comes with `Go`.
    Handed {
        /// Its path on the host, for the plan's reader and for faults.
        path: String,
    },
    /// The target itself again, with other attributes.
    Again,
}
wire!(enum Source {
    0 => New { kind, options }, 1 => Devices, 2 => View { path }, 3 => Handed { path }, 4 => Again,
    5 => Terminals
});

/// What a program reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Streams {
    /// Descriptors: standard output, standard error. There is nothing to read.
    #[default]
    Output,
    /// Descriptors: standard output, standard error, standard input.
    All,
    /// Descriptor: a terminal, for all three.
    Terminal,
}
wire!(enum Streams { 0 => Output, 1 => All, 2 => Terminal });

/// A program to run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Exec {
    /// The program and its arguments; a program without `/` is looked up in `PATH`.
    pub argv: Vec<Vec<u8>>,
    /// Variables that win over the built-in ones, a later one over an earlier.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// Name or number; empty for the template's user.
    pub user: String,
    /// Working directory; empty for the user's home.
    pub directory: Vec<u8>,
    /// What it reads and writes.
    pub streams: Streams,
}
wire!(struct Exec { argv, environment, user, directory, streams });

/// File work, done inside by a helper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileCall {
    /// Name or number; empty for the template's user. Relative paths start at its home.
    pub user: String,
    /// Whose rights count.
    pub authority: Authority,
    /// What to do.
    pub work: FileWork,
}
wire!(struct FileCall { user, authority, work });

/// Whose rights a file call uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authority {
    /// The user's.
    User,
    /// Root's of the sandbox; what is made belongs to the user.
    Root,
}
wire!(enum Authority { 0 => User, 1 => Root });

/// The kinds of file work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileWork {
    /// Stream a regular file into the data pipe.
    Read {
        /// The file.
        path: Vec<u8>,
        /// First byte.
        offset: u64,
        /// At most so many bytes.
        length: Option<u64>,
    },
    /// Stream the data pipe into a file; it takes effect at [`ToHelper::Commit`].
    Write {
        /// The file.
        path: Vec<u8>,
        /// Permission bits; absent keeps those of a file that is there.
        mode: Option<u32>,
        /// Write into the file that is there instead of replacing it at the end.
        in_place: bool,
        /// Make missing directories above it.
        parents: bool,
    },
    /// Describe one path.
    Stat {
        /// The path.
        path: Vec<u8>,
        /// Describe what a symbolic link points to.
        follow: bool,
    },
    /// Describe what is below a directory.
    List {
        /// The directory.
        path: Vec<u8>,
        /// How many levels; 1 is the directory's own entries.
        depth: u32,
        /// At most so many entries.
        limit: u32,
    },
    /// Make a directory.
    Mkdir {
        /// The directory.
        path: Vec<u8>,
        /// Make missing ones above it, and be content if it is there.
        parents: bool,
        /// Permission bits.
        mode: u32,
    },
    /// Remove a file or directory.
    Remove {
        /// The path.
        path: Vec<u8>,
        /// Remove a directory with all that is in it.
        recursive: bool,
    },
    /// Rename.
    Rename {
        /// From.
        from: Vec<u8>,
        /// To.
        to: Vec<u8>,
        /// Replace what is there.
        replace: bool,
    },
    /// Copy a file, or a directory with all that is in it.
    Copy {
        /// From.
        from: Vec<u8>,
        /// To.
        to: Vec<u8>,
        /// Replace what is there.
        replace: bool,
    },
    /// Set permission bits.
    Chmod {
        /// The path.
        path: Vec<u8>,
        /// The bits.
        mode: u32,
    },
    /// Set owner and group, by name or number; empty leaves one as it is.
    Chown {
        /// The path.
        path: Vec<u8>,
        /// The owner.
        owner: String,
        /// The group.
        group: String,
    },
    /// Tell what happens in a directory, for as long as the server listens.
    Watch {
        /// The directory.
        path: Vec<u8>,
        /// And in all directories below it.
        recursive: bool,
        /// At most so many directories.
        limit: u32,
    },
    /// Stream a file, or a directory with all that is in it, into the data pipe as a tar archive.
    Pack {
        /// The file or directory.
        path: Vec<u8>,
    },
    /// Unpack a tar archive from the data pipe into a directory; told at [`ToHelper::Commit`].
    Unpack {
        /// The directory; made if it is missing.
        path: Vec<u8>,
    },
    /// Look for files below a directory.
    Search {
        /// The directory.
        path: Vec<u8>,
        /// A pattern of their names; empty for any.
        name: Vec<u8>,
        /// What is in them; empty for anything.
        text: Vec<u8>,
        /// At most so many places.
        limit: u32,
    },
    /// Say all there is to say of a path, or of what is below a directory: depth first, names in order.
    Describe {
        /// The path.
        path: Vec<u8>,
        /// How many levels; 0 is the path itself.
        depth: u32,
        /// At most so many entries.
        limit: u32,
        /// Tell extended attributes whose names begin so.
        attributes: Vec<u8>,
    },
    /// Stream the data pipe into the file that is there, or a new one. From its first byte on it is the user's and
    /// has these attributes, and no others with their prefix. Missing directories above it are made.
    Put {
        /// The file.
        path: Vec<u8>,
        /// Its attributes.
        attributes: Attributes,
    },
}
wire!(enum FileWork {
    0 => Read { path, offset, length },
    1 => Write { path, mode, in_place, parents },
    2 => Stat { path, follow },
    3 => List { path, depth, limit },
    4 => Mkdir { path, parents, mode },
    5 => Remove { path, recursive },
    6 => Rename { from, to, replace },
    7 => Copy { from, to, replace },
    8 => Chmod { path, mode },
    9 => Chown { path, owner, group },
    10 => Watch { path, recursive, limit },
    11 => Pack { path },
    12 => Unpack { path },
    13 => Search { path, name, text, limit },
    14 => Describe { path, depth, limit, attributes },
    15 => Put { path, attributes },
});

/// What the server says to a file helper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToHelper {
    /// All data was sent: make the write take effect. Without it nothing does.
    Commit,
    /// Tell all changes that have happened by now, then answer.
    Drain {
        /// Comes back in the answer.
        token: u32,
    },
}
wire!(enum ToHelper { 0 => Commit, 1 => Drain { token } });

/// What a file helper says. Hostile by assumption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromHelper {
    /// Some of what was asked for; more may follow.
    Entries(Vec<Entry>),
    /// The work is done.
    Done {
        /// A list left something out because of its limit.
        truncated: bool,
    },
    /// The work failed.
    Failed {
        /// Why, where errno does not say it.
        why: Failure,
        /// The kernel's answer.
        errno: i32,
        /// The path it was about; or what is wrong with an archive.
        path: Vec<u8>,
    },
    /// What happened in a watched directory, in order.
    Changes(Vec<Change>),
    /// The answer to `Drain`; the first one, 0, is not asked for and says that the watch has begun.
    Drained {
        /// The token of the question.
        token: u32,
    },
    /// Some of what was looked for; more may follow.
    Found(Vec<Found>),
    /// Some of what was not unpacked; more may follow.
    LeftOut(Vec<LeftOut>),
    /// An archive was unpacked.
    Unpacked {
        /// Its entries, without those that were left out.
        entries: u64,
        /// Bytes of their contents.
        bytes: u64,
        /// How many were left out; not all of them are told by name.
        left_out: u64,
    },
    /// Some of what was to be described; more may follow.
    Described(Vec<Described>),
}
wire!(enum FromHelper {
    0 => Entries(entries),
    1 => Done { truncated },
    2 => Failed { why, errno, path },
    3 => Changes(changes),
    4 => Drained { token },
    5 => Found(found),
    6 => LeftOut(left_out),
    7 => Unpacked { entries, bytes, left_out },
    8 => Described(described),
});

/// Why file work failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// As errno says.
    Kernel,
    /// The user is not known in the sandbox.
    User,
    /// Neither a regular file nor a link to one.
    NotAFile,
    /// Not a directory.
    NotADirectory,
    /// Not a tar archive, or a broken one.
    Archive,
}
wire!(enum Failure { 0 => Kernel, 1 => User, 2 => NotAFile, 3 => NotADirectory, 4 => Archive });

/// A place that was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The file; its path is relative to the directory.
    pub entry: Entry,
    /// The line, counted from 1; 0 if only the name was looked for.
    pub line: u64,
    /// The line's text, perhaps cut.
    pub text: Vec<u8>,
}
wire!(struct Found { entry, line, text });

/// An entry of an archive that was not unpacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// Its name, perhaps cut.
    pub name: Vec<u8>,
    /// Why.
    pub why: String,
}
wire!(struct LeftOut { name, why });

/// One file system object, as the helper saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Path as asked for, or relative to the listed directory.
    pub path: Vec<u8>,
    /// `st_mode`, type and permission bits.
    pub mode: u32,
    /// Owner inside.
    pub uid: u32,
    /// Group inside.
    pub gid: u32,
    /// Size.
    pub size: u64,
    /// Modification time in nanoseconds since 1970.
    pub modified: i64,
    /// Where a symbolic link points; empty otherwise.
    pub link: Vec<u8>,
}
wire!(struct Entry { path, mode, uid, gid, size, modified, link });

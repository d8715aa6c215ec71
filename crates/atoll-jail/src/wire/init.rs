//! Messages between a server and the PID 1 of a sandbox.

use super::{Boot, Fault, FileCall, Size, wire};

/// Messages from a server to PID 1.
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
    /// A new server requests the state: `Started` for each running exec, `Ended` for each ended one that was not
    /// forgotten, then `Reported`.
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

/// Messages from PID 1. Hostile by assumption.
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
    /// The program was not started.
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
    /// The answer to `Resize`.
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

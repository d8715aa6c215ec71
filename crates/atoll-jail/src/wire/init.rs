//! Messages between a server and the PID 1 of a sandbox.

use super::{Boot, Fault, FileCall, Size, wire};

/// Messages from a server to PID 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToInit {
    /// Configuration of the sandbox. PID 1 prepares everything that does not need the root.
    Boot(Boot),
    /// Complete the setup. Descriptors: the root, then one for each mount whose source is `Devices`,
    /// `Terminals` or `Handed`, in order.
    Go,
    /// Start a program. Descriptors: those of its streams, then the cgroup2 leaf if there is one. Answered by
    /// `Started` or `Refused`.
    Exec {
        /// Id of this exec in all later messages.
        request: u32,
        /// The program.
        exec: Exec,
        /// Execs whose end was recorded.
        forget: Vec<u32>,
    },
    /// Execute a file operation in a helper. Descriptors: the response socket, then the data pipe if there is one.
    File {
        /// Id of this call for `Cancel`.
        request: u32,
        /// The operation.
        call: FileCall,
    },
    /// Send a signal to an exec's process group.
    Signal {
        /// The exec.
        request: u32,
        /// The signal's number.
        signal: i32,
    },
    /// Kill the helper of a cancelled file call.
    Cancel {
        /// The file call.
        request: u32,
    },
    /// A new server requests the state: `Started` for each running exec, `Ended` for each ended one that was not
    /// forgotten, then `Reported`.
    Report {
        /// Distinguishes this request from one of an earlier server, whose response may still arrive.
        number: u64,
    },
    /// Update the views and processors after a change of limits. Answered by `Resized`.
    Resize {
        /// Repeated in the response.
        request: u32,
        /// The new size. Running programs keep their processors.
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

/// Messages from PID 1. Not trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromInit {
    /// The setup is complete; execs work.
    Ready,
    /// The sandbox could not be set up; PID 1 ends.
    Fault(Fault),
    /// The program runs.
    Started {
        /// The exec.
        request: u32,
        /// Pid in the sandbox.
        pid: i32,
    },
    /// The program was not started.
    Refused {
        /// The exec.
        request: u32,
        /// Which part of the request could not be met.
        part: Part,
        /// Error number of the kernel.
        errno: i32,
    },
    /// The exec's first process has ended.
    Ended {
        /// The exec.
        request: u32,
        /// The raw wait status.
        status: i32,
    },
    /// End of the response to `Report`.
    Reported {
        /// Number of the request.
        number: u64,
    },
    /// Response to `Resize`.
    Resized {
        /// Id of the request.
        request: u32,
        /// Error number of the kernel; 0 on success.
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
    /// The working directory is missing or not accessible.
    Directory,
    /// The program is missing or not executable.
    Program,
    /// A step of PID 1 itself.
    Setup,
}
wire!(enum Part { 0 => User, 1 => Directory, 2 => Program, 3 => Setup });

/// A program to run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Exec {
    /// The program and its arguments; a program without `/` is looked up in `PATH`.
    pub argv: Vec<Vec<u8>>,
    /// Variables. They take precedence over built-in ones, later ones over earlier ones.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// Name or number; empty for the template's user.
    pub user: String,
    /// Working directory; empty for the user's home.
    pub directory: Vec<u8>,
    /// Standard streams.
    pub streams: Streams,
}
wire!(struct Exec { argv, environment, user, directory, streams });

/// Standard streams of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Streams {
    /// Descriptors: standard output, standard error. Standard input is empty.
    #[default]
    Output,
    /// Descriptors: standard output, standard error, standard input.
    All,
    /// Descriptor: a terminal for all three streams.
    Terminal,
}
wire!(enum Streams { 0 => Output, 1 => All, 2 => Terminal });

//! Messages between a server and its keeper.

use super::{Fault, VersionRange, wire};

/// Messages from a server to its keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToKeeper {
    /// The first message. Descriptors, if the keeper has just been started: locks of the instance, which it holds as
    /// long as it lives.
    Hello {
        /// The server's [`VERSION`](super::VERSION).
        version: u32,
    },
    /// Clone a PID 1. Descriptors: its control socket; the server's end of it, to be held; its cgroup2
    /// leaf if there is one.
    Spawn {
        /// The server's name for the sandbox in all later messages.
        token: u32,
        /// Name of the sandbox, for later servers.
        name: String,
        /// First id on the host of the sandbox's range.
        id_base: u32,
        /// Number of ids of the range.
        id_count: u32,
        /// `CLONE_NEW*` flags.
        namespaces: u64,
    },
    /// Hold these descriptors (streams of an exec) for later servers.
    Hold {
        /// The sandbox.
        token: u32,
        /// The exec.
        request: u32,
        /// Execs whose descriptors can be closed.
        released: Vec<u32>,
    },
}
wire!(enum ToKeeper {
    0 => Hello { version },
    1 => Spawn { token, name, id_base, id_count, namespaces },
    2 => Hold { token, request, released },
});

/// Messages from a keeper to its server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromKeeper {
    /// Response to `Hello`: the versions of the keeper. Its sandboxes follow. Descriptors: the locks that it holds.
    Hello(VersionRange),
    /// PID 1 exists and its ids are mapped. Descriptor: its user namespace, if it has one.
    Spawned {
        /// The token of the request.
        token: u32,
        /// PID 1's pid as the host sees it.
        pid: i32,
    },
    /// PID 1 could not be cloned.
    Refused {
        /// The token of the request.
        token: u32,
        /// The failed step.
        fault: Fault,
    },
    /// PID 1 has ended and was reaped; all its processes are gone.
    Died {
        /// The token of the sandbox.
        token: u32,
        /// The raw wait status.
        status: i32,
    },
    /// One sandbox, after `Hello`. Descriptor: the server's end of PID 1's control socket. A sandbox that ended while no
    /// server was connected has pid 0, and `Died` follows.
    Sandbox {
        /// Its token.
        token: u32,
        /// Its name.
        name: String,
        /// PID 1's pid as the host sees it.
        pid: i32,
    },
    /// Streams of one exec, after its sandbox. Descriptors: those of `Hold`.
    Held {
        /// The sandbox.
        token: u32,
        /// The exec.
        request: u32,
    },
    /// The end of the inventory.
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

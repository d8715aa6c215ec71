//! Messages between a server and its keeper.

use super::{Fault, VersionRange, wire};

/// Messages from a server to its keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToKeeper {
    /// The first message. Descriptors: what the keeper is to hold as long as it lives (locks), if it has
    /// just been started.
    Hello {
        /// The server's [`VERSION`](super::VERSION).
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

/// Messages from a keeper to its server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromKeeper {
    /// The answer to `Hello`: what the keeper speaks, and its sandboxes. Descriptors: what it holds as long as it lives.
    Hello(VersionRange),
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

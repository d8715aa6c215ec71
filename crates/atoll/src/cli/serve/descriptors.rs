//! Limits of file descriptors: every connection takes one, and so do forwarded ports and operations
//! on sandboxes.

use atoll_server::ConnectionLimits;
use rustix::process::{Resource, getrlimit};

/// Maximum number of connections at the operator's socket, and at the metrics listener.
const OPERATOR: u64 = 256;
const METRICS: u64 = 64;

/// Descriptors that one listener takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    connections: u32,
    /// First descriptor number of the reserve.
    reserved: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shares {
    pub(super) public: Share,
    pub(super) operator: Share,
    pub(super) metrics: Share,
}

impl Share {
    pub(super) fn of(self, limits: ConnectionLimits) -> ConnectionLimits {
        ConnectionLimits {
            max_connections: self.connections,
            first_reserved_fd: self.reserved,
            ..limits
        }
    }
}

impl Shares {
    /// Lowers the configured number of connections to what the hard limit for open files permits,
    /// with a log entry.
    pub(super) fn fit(max_connections: u32) -> Self {
        let open_files = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let shares = Self::new(max_connections, open_files);
        let connections = shares.public.connections;
        if connections < max_connections {
            tracing::warn!(
                max_connections,
                open_files,
                connections,
                "max-connections is lowered: raise the limit for open files (LimitNOFILE)"
            );
        }
        shares
    }

    /// At most half of the descriptors are for public connections. The last eighth is reserved for
    /// the operator's socket and for sandboxes.
    fn new(max_connections: u32, open_files: u64) -> Self {
        let connections = |part: u64, most: u64| {
            let share = (open_files / part).clamp(1, most);
            u32::try_from(share).unwrap_or(u32::MAX)
        };
        let reserved = i32::try_from(open_files - open_files / 8).unwrap_or(i32::MAX);
        Self {
            public: Share {
                connections: connections(2, max_connections.into()),
                reserved,
            },
            operator: Share {
                connections: connections(16, OPERATOR),
                reserved: i32::MAX,
            },
            metrics: Share {
                connections: connections(32, METRICS),
                reserved,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_take_at_most_half_of_the_descriptors() {
        for (max_connections, open_files, connections, reserved) in [
            (10_000, 1_048_576, 10_000, 917_504),
            (10_000, u64::MAX, 10_000, i32::MAX),
            (10_000, 20_000, 10_000, 17_500),
            (10_000, 19_999, 9_999, 17_500),
            (10_000, 1024, 512, 896),
            (100, 1024, 100, 896),
            (100, 0, 1, 0),
        ] {
            let shares = Shares::new(max_connections, open_files);
            let public = Share {
                connections,
                reserved,
            };
            assert_eq!(shares.public, public, "{max_connections} of {open_files}");
            assert!(shares.operator.connections >= 1 && shares.metrics.connections >= 1);
            let others = shares.operator.connections + shares.metrics.connections;
            assert!(open_files < 32 || u64::from(others) <= open_files / 10);
        }
    }
}

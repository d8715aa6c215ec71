//! Rules that test arguments.
//!
//! Each tests exactly the bits that the kernel uses. No rule follows a pointer.

use super::rule::{Case, INT, SyscallRule, Test, Value, Verdict};

const EPERM: Verdict = Verdict::Errno(libc::EPERM);

/// Header constants with their names; `libc` types them differently from target to target.
macro_rules! values {
    ($($constant:ident)*) => { &[$(Value { number: libc::$constant as u32 as u64, name: stringify!($constant) }),*] };
}

const ZERO: &[Value] = &[Value {
    number: 0,
    name: "0",
}];

/// `clone`: no new namespaces. The kernel takes the low half of the flags only. The low byte is the exit signal, so
/// `CLONE_NEWTIME` cannot be requested here; the bit is in the mask because no signal has it.
pub(super) const CLONE: SyscallRule = SyscallRule {
    cases: &[Case {
        tests: &[Test {
            argument: 0,
            name: "flags",
            mask: Value {
                number: NEW_NAMESPACE,
                name: "CLONE_NEW*",
            },
            any_of: ZERO,
        }],
        then: Verdict::Allow,
    }],
    otherwise: EPERM,
};

const NEW_NAMESPACE: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWTIME) as u64;

/// `unshare`: only what a thread shares with its process, by an allow-list over all 64 bits: unlike in `clone`, a
/// flag that a later kernel invents is refused too.
pub(super) const UNSHARE: SyscallRule = SyscallRule {
    cases: &[Case {
        tests: &[Test {
            argument: 0,
            name: "flags",
            mask: Value {
                number: !OWN,
                name: "~(FILES|FS|SIGHAND|SYSVSEM|THREAD|VM)",
            },
            any_of: ZERO,
        }],
        then: Verdict::Allow,
    }],
    otherwise: EPERM,
};

const OWN: u64 = (libc::CLONE_FILES
    | libc::CLONE_FS
    | libc::CLONE_SIGHAND
    | libc::CLONE_SYSVSEM
    | libc::CLONE_THREAD
    | libc::CLONE_VM) as u64;

/// `socket`: unix; plain TCP, UDP and ping (a further protocol such as SCTP would have the host load a module); routing
/// netlink. Others fail as in a kernel built without them: `sudo` and `passwd` continue without audit, Go without MPTCP,
/// `ss` uses /proc.
pub(super) const SOCKET: SyscallRule = SyscallRule {
    cases: &[
        Case {
            tests: &[domain(values! { AF_UNIX })],
            then: Verdict::Allow,
        },
        Case {
            tests: &[
                domain(INTERNET),
                kind(STREAM_OR_DATAGRAM),
                protocol(
                    values! { IPPROTO_IP IPPROTO_ICMP IPPROTO_TCP IPPROTO_UDP IPPROTO_ICMPV6 },
                ),
            ],
            then: Verdict::Allow,
        },
        Case {
            tests: &[
                domain(values! { AF_NETLINK }),
                kind(values! { SOCK_RAW SOCK_DGRAM }),
                protocol(values! { NETLINK_ROUTE }),
            ],
            then: Verdict::Allow,
        },
        Case {
            tests: &[domain(INTERNET), kind(STREAM_OR_DATAGRAM)],
            then: Verdict::Errno(libc::EPROTONOSUPPORT),
        },
        Case {
            tests: &[domain(INTERNET)],
            then: EPERM,
        },
        Case {
            tests: &[domain(values! { AF_NETLINK })],
            then: Verdict::Errno(libc::EPROTONOSUPPORT),
        },
    ],
    otherwise: Verdict::Errno(libc::EAFNOSUPPORT),
};

/// `socketpair`: unix.
pub(super) const SOCKETPAIR: SyscallRule = SyscallRule {
    cases: &[Case {
        tests: &[domain(values! { AF_UNIX })],
        then: Verdict::Allow,
    }],
    otherwise: Verdict::Errno(libc::EAFNOSUPPORT),
};

const INTERNET: &[Value] = values! { AF_INET AF_INET6 };
const STREAM_OR_DATAGRAM: &[Value] = values! { SOCK_STREAM SOCK_DGRAM };

const fn domain(any_of: &'static [Value]) -> Test {
    Test {
        argument: 0,
        name: "domain",
        mask: INT,
        any_of,
    }
}

/// The type without `SOCK_CLOEXEC` and `SOCK_NONBLOCK`.
const fn kind(any_of: &'static [Value]) -> Test {
    Test {
        argument: 1,
        name: "type",
        mask: Value {
            number: 0xf,
            name: "SOCK_TYPE_MASK",
        },
        any_of,
    }
}

const fn protocol(any_of: &'static [Value]) -> Test {
    Test {
        argument: 2,
        name: "protocol",
        mask: INT,
        any_of,
    }
}

/// `ioctl`: nothing that types into a terminal, takes the console's output or changes a line discipline.
pub(super) const IOCTL: SyscallRule = SyscallRule {
    cases: &[Case {
        tests: &[Test {
            argument: 1,
            name: "request",
            mask: INT,
            any_of: values! { TIOCSTI TIOCLINUX TIOCCONS TIOCSETD },
        }],
        then: EPERM,
    }],
    otherwise: Verdict::Allow,
};

/// `personality`: asking, and what `linux32` and `uname26` set; not `ADDR_NO_RANDOMIZE`.
pub(super) const PERSONALITY: SyscallRule = SyscallRule {
    cases: &[Case {
        tests: &[Test {
            argument: 0,
            name: "persona",
            mask: INT,
            any_of: &[
                Value {
                    number: 0,
                    name: "PER_LINUX",
                },
                Value {
                    number: 0x8,
                    name: "PER_LINUX32",
                },
                Value {
                    number: 0x2_0000,
                    name: "UNAME26",
                },
                Value {
                    number: 0x2_0008,
                    name: "PER_LINUX32+UNAME26",
                },
                Value {
                    number: 0xffff_ffff,
                    name: "query",
                },
            ],
        }],
        then: Verdict::Allow,
    }],
    otherwise: EPERM,
};

/// `prlimit64`: PID 1 keeps its limits. The kernel lets the sandbox's root lower them, and PID 1 could start no command any
/// more, or would be killed.
pub(super) const PRLIMIT: SyscallRule = SyscallRule {
    cases: &[
        Case {
            tests: &[Test {
                argument: 2,
                name: "new_limit",
                mask: Value {
                    number: u64::MAX,
                    name: "~0",
                },
                any_of: ZERO,
            }],
            then: Verdict::Allow,
        },
        Case {
            tests: &[Test {
                argument: 0,
                name: "pid",
                mask: INT,
                any_of: &[Value {
                    number: 1,
                    name: "1",
                }],
            }],
            then: EPERM,
        },
    ],
    otherwise: Verdict::Allow,
};

/// `mknod`: no devices.
#[cfg(target_arch = "x86_64")]
pub(super) const MKNOD: SyscallRule = SyscallRule {
    cases: &[Case {
        tests: &[file_type(1)],
        then: Verdict::Allow,
    }],
    otherwise: EPERM,
};

/// `mknodat`: no devices.
pub(super) const MKNODAT: SyscallRule = SyscallRule {
    cases: &[Case {
        tests: &[file_type(2)],
        then: Verdict::Allow,
    }],
    otherwise: EPERM,
};

/// The kernel cuts a mode to 16 bits, the mask is within them. Type 0 makes a regular file.
const fn file_type(argument: u8) -> Test {
    Test {
        argument,
        name: "mode",
        mask: Value {
            number: libc::S_IFMT as u64,
            name: "S_IFMT",
        },
        any_of: &[
            Value {
                number: 0,
                name: "0",
            },
            Value {
                number: libc::S_IFREG as u64,
                name: "S_IFREG",
            },
            Value {
                number: libc::S_IFIFO as u64,
                name: "S_IFIFO",
            },
            Value {
                number: libc::S_IFSOCK as u64,
                name: "S_IFSOCK",
            },
        ],
    }
}

#![allow(unsafe_code, reason = "the filter is tried in a forked child")]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::program::{self, Instruction, NATIVE, Writer, action};
use super::rule::{Case, SyscallRule, Test, Value, Verdict};
use super::{SyscallPolicy, calls, for_init, from_bytes, install, syscall_name, to_bytes};

const I386: u32 = 0x4000_0003;
const X32: u32 = 0x4000_0000;
const ENOSYS: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

#[derive(Debug, Clone, Copy)]
struct Data {
    number: u32,
    architecture: u32,
    arguments: [u64; 6],
}

impl Data {
    fn native(number: u32, arguments: [u64; 6]) -> Data {
        Data {
            number,
            architecture: NATIVE,
            arguments,
        }
    }

    fn word(&self, offset: u32) -> u32 {
        match offset {
            0 => self.number,
            4 => self.architecture,
            16..64 if offset.is_multiple_of(4) => {
                let argument = self.arguments[(offset as usize - 16) / 8];
                (argument >> (8 * (offset % 8))) as u32
            }
            _ => panic!("load at {offset}"),
        }
    }
}

/// The verdict and the number of steps to it.
fn run(program: &[Instruction], data: &Data) -> (u32, usize) {
    let (mut at, mut accumulator) = (0, 0u32);
    for step in 1.. {
        let Instruction {
            code,
            yes,
            no,
            operand,
        } = program[at];
        at += 1;
        let jump = |condition| usize::from(if condition { yes } else { no });
        match code {
            program::LOAD => accumulator = data.word(operand),
            program::AND => accumulator &= operand,
            program::GOTO => at += operand as usize,
            program::EQUAL => at += jump(accumulator == operand),
            program::AT_LEAST => at += jump(accumulator >= operand),
            program::RETURN => return (operand, step),
            _ => panic!("operation {code:#x}"),
        }
    }
    unreachable!("jumps go forward")
}

/// What the rules say, without the compiler.
fn evaluate(rules: &BTreeMap<u32, SyscallRule>, data: &Data) -> u32 {
    let Some(rule) = rules
        .get(&data.number)
        .filter(|_| data.architecture == NATIVE)
    else {
        return ENOSYS;
    };
    let holds = |test: &Test| {
        let masked = data.arguments[usize::from(test.argument)] & test.mask.number;
        test.any_of.iter().any(|value| value.number == masked)
    };
    let case = rule.cases.iter().find(|case| case.tests.iter().all(holds));
    action(case.map_or(rule.otherwise, |case| case.then))
}

/// Words at and around everything the rule mentions for this argument, with and without bits that the kernel cuts off.
fn probes(rule: &SyscallRule, argument: u8) -> Vec<u64> {
    let mut words = BTreeSet::from([0]);
    for test in rule
        .cases
        .iter()
        .flat_map(|case| case.tests)
        .filter(|test| test.argument == argument)
    {
        let mask = test.mask.number;
        let bits = (0..64)
            .map(|bit| 1 << bit)
            .filter(|bit| mask.count_ones() < 32 || mask >> 32 != 0 && bit & mask != 0);
        words.extend(bits);
        for value in test.any_of {
            let number = value.number;
            words.extend([
                number,
                number + 1,
                number.wrapping_sub(1),
                number | !mask,
                number | 1 << 32,
                !number,
            ]);
        }
    }
    words.into_iter().collect()
}

/// The compiled program and the rules agree on every number, and on all probes of the numbers with conditions.
fn check(rules: &BTreeMap<u32, SyscallRule>, numbers: impl IntoIterator<Item = u32>) {
    let program = program::compile(rules);
    let agree = |data: Data| {
        assert_eq!(
            run(&program, &data).0,
            evaluate(rules, &data),
            "{data:x?} in {rules:#x?}"
        );
    };
    for number in numbers {
        agree(Data::native(number, [0; 6]));
        agree(Data {
            number,
            architecture: I386,
            arguments: [0; 6],
        });
        let Some(rule) = rules.get(&number).filter(|rule| !rule.cases.is_empty()) else {
            continue;
        };
        let [first, second, third] = [0, 1, 2].map(|argument| probes(rule, argument));
        for &a in &first {
            for &b in &second {
                for &c in &third {
                    agree(Data::native(number, [a, b, c, 0, 0, 0]));
                }
            }
        }
    }
}

fn all_numbers() -> impl Iterator<Item = u32> {
    (0..1100)
        .chain(X32..X32 + 1100)
        .chain([u32::MAX, u32::MAX - 1, 1 << 31])
}

fn verdict(policy: &SyscallPolicy, name: &str, arguments: &[u64]) -> String {
    let number = calls()
        .find(|call| call.name == name)
        .expect("known call")
        .number;
    let mut padded = [0; 6];
    padded[..arguments.len()].copy_from_slice(arguments);
    match run(&policy.compile(), &Data::native(number, padded)).0 {
        libc::SECCOMP_RET_ALLOW => "allow".to_owned(),
        other => Verdict::Errno((other & libc::SECCOMP_RET_DATA) as i32).to_string(),
    }
}

#[test]
fn program_decides_as_the_standard_policy() {
    check(&SyscallPolicy::standard().rules, all_numbers());
}

#[test]
fn program_decides_as_the_nesting_policy() {
    let mut policy = SyscallPolicy::standard();
    policy.allow_user_namespaces();
    check(&policy.rules, all_numbers());
}

#[test]
fn foreign_abis_and_unknown_numbers_return_enosys() {
    let program = SyscallPolicy::standard().compile();
    for number in all_numbers() {
        let foreign = Data {
            number,
            architecture: I386,
            arguments: [0; 6],
        };
        assert_eq!(run(&program, &foreign).0, ENOSYS, "{number} of i386");
        if syscall_name(number).is_none() {
            assert_eq!(
                run(&program, &Data::native(number, [0; 6])).0,
                ENOSYS,
                "{number}"
            );
        }
    }
}

#[test]
fn password_permits_clone3_and_nothing_else() {
    let policy = SyscallPolicy::standard().compile();
    let cookie = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];
    let filter = for_init(&policy, &cookie);
    let clone3 = libc::SYS_clone3 as u32;
    let with = |second, third, fourth| Data::native(clone3, [1, second, third, fourth, 0, 0]);
    let right = with(2, cookie[0], cookie[1]);
    assert_eq!(run(&filter, &right).0, libc::SECCOMP_RET_ALLOW);
    // Every bit of it counts, in its place.
    for bit in 0..64 {
        let wrong = 1 << bit;
        for data in [
            with(2, cookie[0] ^ wrong, cookie[1]),
            with(2, cookie[0], cookie[1] ^ wrong),
        ] {
            assert_eq!(run(&filter, &data).0, ENOSYS, "{bit}");
        }
    }
    for data in [
        with(2, cookie[1], cookie[0]),
        with(cookie[0], cookie[1], 0),
        with(2, 0, 0),
    ] {
        assert_eq!(run(&filter, &data).0, ENOSYS);
    }
    for number in all_numbers().filter(|&number| number != clone3) {
        for arguments in [[0; 6], [0, 0, cookie[0], cookie[1], 0, 0]] {
            let data = Data::native(number, arguments);
            assert_eq!(run(&filter, &data).0, run(&policy, &data).0, "{number}");
        }
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn every_number_up_to_the_newest_is_decided_once() {
    let mut numbers: Vec<_> = calls().map(|call| call.number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..=336).chain(424..=469).collect::<Vec<_>>());
    let names: BTreeSet<_> = calls().map(|call| call.name).collect();
    assert_eq!(names.len(), numbers.len());
}

#[test]
fn syscall_numbers_match_libc() {
    let known = [
        ("pidfd_send_signal", libc::SYS_pidfd_send_signal),
        ("io_uring_register", libc::SYS_io_uring_register),
        ("fspick", libc::SYS_fspick),
        ("clone3", libc::SYS_clone3),
        ("epoll_pwait2", libc::SYS_epoll_pwait2),
        ("mount_setattr", libc::SYS_mount_setattr),
        ("quotactl_fd", libc::SYS_quotactl_fd),
        ("memfd_secret", libc::SYS_memfd_secret),
        ("set_mempolicy_home_node", libc::SYS_set_mempolicy_home_node),
        ("mseal", libc::SYS_mseal),
    ];
    for (name, number) in known {
        assert_eq!(syscall_name(number as u32), Some(name));
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn standard_policy_is_the_committed_one() {
    insta::assert_snapshot!(SyscallPolicy::standard().lines().join("\n"));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn nesting_changes_only_these_lines() {
    let standard = SyscallPolicy::standard().lines();
    let mut policy = SyscallPolicy::standard();
    policy.allow_user_namespaces();
    let changed: Vec<_> = policy
        .lines()
        .into_iter()
        .filter(|line| !standard.contains(line))
        .collect();
    insta::assert_snapshot!(changed.join("\n"));
}

#[test]
fn conditions_ignore_bits_that_the_kernel_truncates() {
    let policy = SyscallPolicy::standard();
    let high = 0xdead_0000_0000_0000u64;
    let cases: &[(&str, &[u64], &str)] = &[
        (
            "ioctl",
            &[0, u64::from(libc::TIOCSTI as u32) | high],
            "EPERM",
        ),
        (
            "ioctl",
            &[0, u64::from(libc::TIOCGWINSZ as u32) | high],
            "allow",
        ),
        ("socket", &[1, 1], "allow"),
        ("socket", &[2 | high, 1 | 0o2_004_000, 6], "allow"),
        ("socket", &[2, 3, 1], "EPERM"),
        ("socket", &[2, 3 | 0o2_000_000 | high, 255], "EPERM"),
        ("socket", &[2, 10, 0], "EPERM"),
        ("socket", &[2, 1, 132], "EPROTONOSUPPORT"),
        ("socket", &[16, 3, 0], "allow"),
        ("socket", &[16, 3, 9], "EPROTONOSUPPORT"),
        ("socket", &[16, 3, 0xc | high], "EPROTONOSUPPORT"),
        ("socket", &[40, 1], "EAFNOSUPPORT"),
        ("socket", &[38, 5], "EAFNOSUPPORT"),
        ("socket", &[0x11 | high, 3, 0x300], "EAFNOSUPPORT"),
        ("socketpair", &[1, 1], "allow"),
        ("socketpair", &[30, 1], "EAFNOSUPPORT"),
        ("clone", &[0x3d0_f00], "allow"),
        ("clone", &[0x1200_0011], "EPERM"),
        ("clone", &[0x1000_0011 | high], "EPERM"),
        ("unshare", &[0x400], "allow"),
        ("unshare", &[0x80], "EPERM"),
        ("unshare", &[0x400 | high], "EPERM"),
        ("personality", &[0x0004_0000], "EPERM"),
        ("personality", &[u64::MAX], "allow"),
        ("mknodat", &[0, 0, 0o010_644], "allow"),
        ("mknodat", &[0, 0, 0o020_644], "EPERM"),
        ("mknodat", &[0, 0, 0o060_644 | high], "EPERM"),
    ];
    for (name, arguments, expected) in cases {
        assert_eq!(
            verdict(&policy, name, arguments),
            *expected,
            "{name} {arguments:x?}"
        );
    }
}

#[test]
fn lifting_a_call_lifts_its_conditions_and_nothing_else() {
    let standard = SyscallPolicy::standard();
    let mut policy = standard.clone();
    assert!(policy.allow("socket") && policy.allow("ioctl") && policy.allow("bpf"));
    assert!(!policy.allow("no_such_call"));
    assert_eq!(verdict(&policy, "socket", &[40, 1]), "allow");
    assert_eq!(
        verdict(&policy, "ioctl", &[0, u64::from(libc::TIOCSTI as u32)]),
        "allow"
    );
    let changed = policy
        .rules
        .iter()
        .filter(|(number, rule)| standard.rules[number] != **rule);
    let mut changed: Vec<_> = changed
        .filter_map(|(&number, _)| syscall_name(number))
        .collect();
    changed.sort_unstable();
    assert_eq!(changed, ["bpf", "ioctl", "socket"]);
}

#[test]
fn program_is_small_and_its_search_is_short() {
    let program = SyscallPolicy::standard().compile();
    assert!(program.len() < 300, "{} instructions", program.len());
    let slowest = (0..500)
        .map(|number| run(&program, &Data::native(number, [0; 6])).1)
        .max();
    assert!(slowest < Some(32), "{slowest:?} steps");
}

#[test]
fn program_bytes_round_trip_and_invalid_ones_fail() {
    let program = SyscallPolicy::standard().compile();
    let bytes = to_bytes(&program);
    assert_eq!(from_bytes(&bytes), Some(program));
    assert_eq!(from_bytes(&bytes[1..]), None);
    assert_eq!(from_bytes(&[]), None);
    assert_eq!(from_bytes(&vec![0; 8 * 4097]), None);
}

#[test]
fn branch_reaches_targets_at_the_limit_of_its_offsets() {
    let distances = [0, 1, 253, 254, 255, 256, 257, 600];
    for (yes, no) in distances
        .into_iter()
        .flat_map(|yes| distances.map(|no| (yes, no)))
    {
        let mut writer = Writer::default();
        let places: Vec<_> = (0..=600)
            .map(|distance| {
                writer.push(program::RETURN, 600 - distance);
                writer.here()
            })
            .collect();
        writer.branch(program::EQUAL, 7, places[600 - yes], places[600 - no]);
        writer.push(program::LOAD, program::NUMBER);
        let program = writer.finish();
        assert_eq!(run(&program, &Data::native(7, [0; 6])).0 as usize, yes);
        assert_eq!(run(&program, &Data::native(8, [0; 6])).0 as usize, no);
    }
}

fn verdicts() -> impl Strategy<Value = Verdict> {
    prop_oneof![Just(Verdict::Allow), (1..4).prop_map(Verdict::Errno)]
}

fn tests() -> impl Strategy<Value = Test> {
    let mask = prop_oneof![
        Just(0xffff_ffff),
        Just(0xf000),
        Just(!7u64),
        Just(u64::MAX),
        any::<u64>()
    ];
    let numbers = proptest::collection::vec(prop_oneof![0..4u64, any::<u64>()], 1..5);
    (0..3u8, mask, numbers).prop_map(|(argument, mask, numbers)| {
        let any_of: Vec<_> = numbers
            .into_iter()
            .map(|number| Value {
                number: number & mask,
                name: "",
            })
            .collect();
        Test {
            argument,
            name: "",
            mask: Value {
                number: mask,
                name: "",
            },
            any_of: any_of.leak(),
        }
    })
}

fn rules() -> impl Strategy<Value = SyscallRule> {
    let case =
        (proptest::collection::vec(tests(), 0..4), verdicts()).prop_map(|(tests, then)| Case {
            tests: tests.leak(),
            then,
        });
    let simple = verdicts().prop_map(SyscallRule::always);
    let conditional =
        (proptest::collection::vec(case, 1..5), verdicts()).prop_map(|(cases, otherwise)| {
            SyscallRule {
                cases: cases.leak(),
                otherwise,
            }
        });
    prop_oneof![9 => simple, 1 => conditional]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Up to 300 calls at random numbers: large enough for jumps that need bridges.
    #[test]
    fn program_decides_as_random_rules(
        rules in proptest::collection::btree_map(prop_oneof![0..600u32, any::<u32>()], rules(), 0..300),
        words in proptest::collection::vec(any::<[u64; 3]>(), 20),
    ) {
        let program = program::compile(&rules);
        let edges = rules.keys().flat_map(|&number| [number, number.wrapping_add(1), number.wrapping_sub(1)]);
        for number in edges.chain([0, u32::MAX]) {
            let near = rules.get(&number).map(|rule| [0, 1, 2].map(|argument| probes(rule, argument)));
            let near = near.iter().flat_map(|[a, b, c]| {
                (0..a.len().max(b.len()).max(c.len())).map(|i| [a[i % a.len()], b[i % b.len()], c[i % c.len()]])
            });
            for [a, b, c] in near.chain(words.iter().copied()).chain([[0; 3]]) {
                let data = Data::native(number, [a, b, c, 0, 0, 0]);
                prop_assert_eq!(run(&program, &data).0, evaluate(&rules, &data), "{:x?}", data);
            }
        }
    }
}

/// One real call in a filtered child: its number, arguments, and the errno it must (0: must not) answer with.
type Probe = (i64, [u64; 3], i32);

/// Installs a filter in a forked child and makes the calls there; the index of the first that answers otherwise.
fn first_surprise(program: &[Instruction], probes: &[Probe]) -> Option<usize> {
    // SAFETY: the test process has threads, so the child makes only system calls, allocates nothing and leaves by _exit.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        // SAFETY: no pointers.
        let ready = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } == 0
            && install(program).is_ok();
        let surprise = probes.iter().position(|&(number, [a, b, c], errno)| {
            // SAFETY: the calls probed here take no pointers, or refuse the null ones they get.
            let failed = unsafe { libc::syscall(number, a, b, c, 0, 0, 0) } < 0;
            // SAFETY: errno of this thread.
            let errno_now = unsafe { *libc::__errno_location() };
            if errno == 0 {
                failed
            } else {
                !failed || errno_now != errno
            }
        });
        let status = if ready {
            surprise.map_or(0, |index| index as i32 + 1)
        } else {
            255
        };
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(status) }
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(
        libc::WIFEXITED(status),
        "child ended with status {status:#x}"
    );
    let code = libc::WEXITSTATUS(status);
    assert_ne!(code, 255, "the kernel refused a filter");
    (code > 0).then(|| code as usize - 1)
}

#[test]
fn kernel_accepts_and_enforces_the_filter() {
    const EPERM: i32 = libc::EPERM;
    let number = |name: &str| {
        i64::from(
            calls()
                .find(|call| call.name == name)
                .expect("known call")
                .number,
        )
    };
    let high = 1 << 32;
    let probes: &[Probe] = &[
        (libc::SYS_getpid, [0; 3], 0),
        (libc::SYS_socket, [1, 1, 0], 0),
        (libc::SYS_socket, [40, 1, 0], libc::EAFNOSUPPORT),
        (libc::SYS_socket, [0x11 | high, 3, 0], libc::EAFNOSUPPORT),
        (libc::SYS_socket, [2, 3, 1], EPERM),
        (libc::SYS_socket, [16, 3, 0], 0),
        (libc::SYS_socket, [16, 3, 9], libc::EPROTONOSUPPORT),
        (libc::SYS_unshare, [libc::CLONE_NEWUSER as u64, 0, 0], EPERM),
        (libc::SYS_unshare, [libc::CLONE_FILES as u64, 0, 0], 0),
        (
            libc::SYS_clone,
            [libc::CLONE_NEWUSER as u64 | 0x11, 0, 0],
            EPERM,
        ),
        (
            libc::SYS_ioctl,
            [9999, u64::from(libc::TIOCSTI as u32) | high, 0],
            EPERM,
        ),
        (
            libc::SYS_ioctl,
            [9999, u64::from(libc::TIOCGWINSZ as u32), 0],
            libc::EBADF,
        ),
        (libc::SYS_personality, [0x0004_0000, 0, 0], EPERM),
        (libc::SYS_personality, [0xffff_ffff, 0, 0], 0),
        (libc::SYS_mount, [0; 3], EPERM),
        (libc::SYS_bpf, [0; 3], EPERM),
        (libc::SYS_io_uring_setup, [1, 0, 0], EPERM),
        (number("statmount"), [0; 3], libc::ENOSYS),
        (libc::SYS_clone3, [0; 3], libc::ENOSYS),
        (1000, [0; 3], libc::ENOSYS),
        (libc::SYS_getpid | i64::from(X32), [0; 3], libc::ENOSYS),
    ];
    let cookie = [7, 0];
    let filter = for_init(&SyscallPolicy::standard().compile(), &cookie);
    let surprise = first_surprise(&filter, probes);
    assert_eq!(surprise.map(|index| probes[index]), None);
    // With the cookie clone3 is there: its null arguments are what it refuses.
    let probes = [
        (libc::SYS_clone3, [0, 0, 7], libc::EINVAL),
        (libc::SYS_clone3, [0, 0, 6], libc::ENOSYS),
    ];
    assert_eq!(first_surprise(&filter, &probes), None);
    assert_eq!(surprise, None);
}

use std::time::Duration;

use proptest::prelude::*;

use super::*;

#[test]
fn sizes_parse_from_usual_notation() {
    for (text, bytes) in [
        ("512M", 512 << 20),
        ("2g", 2 << 30),
        ("1.5GiB", 3 << 29),
        ("1048576", 1 << 20),
        ("4kb", 4096),
        ("0", 0),
    ] {
        assert_eq!(text.parse::<Bytes>(), Ok(Bytes(bytes)), "{text}");
    }
    for text in ["", "-1", "lots", "1X", "1e30", "NaN", "inf", "M"] {
        assert_eq!(
            text.parse::<Bytes>().map_err(|error| error.code),
            Err(Code::InvalidRequest),
            "{text}"
        );
    }
    assert_eq!(Bytes(3 << 29).to_string(), "1.5 GiB");
    assert_eq!(Bytes(2 << 30).to_string(), "2 GiB");
}

#[test]
fn durations_and_cpus_parse_from_usual_notation() {
    assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
    assert_eq!(parse_duration("5m"), Ok(Duration::from_mins(5)));
    assert_eq!(parse_duration("1.5"), Ok(Duration::from_millis(1500)));
    assert!(
        parse_duration("-1s").is_err()
            && parse_duration("soon").is_err()
            && parse_duration("1e300d").is_err()
    );
    assert_eq!("0.5".parse::<Cpus>(), Ok(Cpus(500)));
    assert!("-1".parse::<Cpus>().is_err() && "NaN".parse::<Cpus>().is_err());
}

#[test]
fn limit_out_of_range_is_rejected_by_name() {
    let check = |limits: Limits| {
        let error = limits
            .check(&Limits::MAX, Bytes(4 << 30))
            .expect_err("out of range");
        format!("{} | {}", error.message, error.remedy.expect("a remedy"))
    };
    let fine = Limits::default();
    assert_eq!(fine.check(&Limits::MAX, Bytes(4 << 30)), Ok(()));
    assert_eq!(
        check(Limits {
            cpus: Cpus(64_000),
            ..fine
        }),
        "cpus 64 is out of range | choose cpus from 0.05 to 4, the ceiling of this host"
    );
    assert_eq!(
        check(Limits {
            memory: Bytes(6 << 30),
            ..fine
        }),
        "memory 6 GiB is out of range | choose memory from 16 MiB to 4 GiB, the ceiling of this host"
    );
    assert_eq!(
        check(Limits { pids: 1, ..fine }),
        "pids 1 is out of range | choose pids from 8 to 4096, the ceiling of this host"
    );
    assert_eq!(
        check(Limits {
            disk: Bytes(51 << 30),
            ..fine
        }),
        "disk 51 GiB is out of range | choose disk from 16 MiB to 50 GiB, the ceiling of this host"
    );
}

#[test]
fn configured_maximum_replaces_the_default() {
    let max = Limits {
        cpus: Cpus(16_000),
        disk: Bytes(12 << 30),
        ..Limits::MAX
    };
    let check = |limits: Limits| limits.check(&max, Bytes(64 << 30)).is_ok();
    let fine = Limits::default();
    for (cpus, disk, expected) in [(16, 12, true), (17, 12, false), (16, 13, false)] {
        let (cpus, disk) = (Cpus(cpus * 1000), Bytes(disk << 30));
        assert_eq!(check(Limits { cpus, disk, ..fine }), expected);
    }
}

#[test]
fn limits_without_disk_get_the_default() {
    let old = r#"{"cpus":2000,"memory":2147483648,"pids":1024}"#;
    assert_eq!(
        serde_json::from_str::<Limits>(old).expect("old limits"),
        Limits::default()
    );
}

#[test]
fn ids_are_unique_dns_labels() {
    let ids: std::collections::HashSet<_> = (0..1000).map(|_| SandboxId::random()).collect();
    assert_eq!(ids.len(), 1000);
    for id in ids {
        assert_eq!(id.as_str().parse(), Ok(id));
    }
    for text in [
        "",
        "i",
        "iABC",
        "x0123456789abcdefghij",
        "i0123456789abcdefghi-",
    ] {
        assert!(text.parse::<SandboxId>().is_err(), "{text}");
    }
}

#[test]
fn exit_codes_follow_shell_conventions() {
    let ended = ExecStatus::default();
    assert_eq!(
        ExecStatus {
            code: Some(3),
            ..ended
        }
        .exit_code(),
        3
    );
    assert_eq!(
        ExecStatus {
            signal: Some(15),
            ..ended
        }
        .exit_code(),
        143
    );
    assert_eq!(
        ExecStatus {
            signal: Some(9),
            oom_killed: true,
            ..ended
        }
        .exit_code(),
        137
    );
    assert_eq!(
        ExecStatus {
            signal: Some(9),
            timed_out: true,
            ..ended
        }
        .exit_code(),
        124
    );
}

/// The table is part of the API: changing it affects every client.
#[test]
fn error_table_matches_snapshot() {
    let table: Vec<String> = Code::ALL
        .iter()
        .map(|code| {
            format!(
                "{:<22} {} close {} exit {:<2} {:?}{}",
                code.name(),
                code.status(),
                code.close_code(),
                code.exit_code(),
                code.category(),
                code.retry_after()
                    .map(|seconds| format!(", retry after {seconds} s"))
                    .unwrap_or_default(),
            )
        })
        .collect();
    insta::assert_snapshot!(table.join("\n"));
}

proptest! {
    #[test]
    fn size_round_trips_through_text(number in 0_u64..1 << 50) {
        prop_assert_eq!(number.to_string().parse::<Bytes>(), Ok(Bytes(number)));
    }
}

#[test]
fn run_name_is_a_dns_label() {
    let long = "x".repeat(63);
    for name in ["a", "0", "nightly-build", "a-", &long] {
        assert_eq!(name.parse::<RunName>().map(String::from), Ok(name.into()));
    }
    let longer = "x".repeat(64);
    for name in ["", "-a", "A", "a.b", "a/b", "..", "a b", "\u{e9}", &longer] {
        let error = name.parse::<RunName>().expect_err(name);
        assert_eq!(error.details["field"], "name");
        assert!(error.remedy.is_some());
    }
}

#[test]
fn transition_table_matches_snapshot() {
    let transitions = [
        Transition::Ready,
        Transition::Fail,
        Transition::Pause,
        Transition::Resume,
        Transition::Stop,
        Transition::End,
        Transition::Start,
    ];
    let mut table = Vec::new();
    for state in SandboxState::ALL {
        for transition in transitions {
            let then = match state.next(transition) {
                Ok(next) => next.name().to_owned(),
                Err(error) => format!(
                    "{}, {}",
                    error.code.name(),
                    error.remedy.unwrap_or_default()
                ),
            };
            table.push(format!("{:8} {transition:6?} → {then}", state.name()));
        }
    }
    insta::assert_snapshot!(table.join("\n"));
}

#[test]
fn illegal_transition_names_state_and_remedy() {
    let error = SandboxState::Paused
        .next(Transition::Start)
        .expect_err("it must be resumed first");
    assert_eq!(error.code, Code::SandboxPaused);
    assert_eq!(error.message, "a sandbox that is paused cannot be started");
    assert_eq!(error.remedy.as_deref(), Some("resume it first"));
    assert_eq!(error.details["state"], "paused");
}

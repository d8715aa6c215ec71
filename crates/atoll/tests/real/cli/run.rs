//! `atoll run`: input, output, exit codes, files.

use std::process::{Command, Stdio};
use std::time::Duration;

use atoll_testkit::{Scratch, run_within};

use super::{atoll, done, output_text, own_data};

/// Command lines and their expected output, including hints.
#[test]
fn run_output_and_exit_codes_match_those_of_a_shell() {
    let cases: &[(&[&str], &str)] = &[
        (&["--", "python3", "-c", "print(6*7)"], "42\nexit 0"),
        (&["--", "sh", "-c", "exit 7"], "exit 7"),
        (&["echo", "-n", "--", "--cpus"], "-- --cpusexit 0"),
        (
            &["--cpus", "1", "python3", "-c", "print(6*7)"],
            "42\nexit 0",
        ),
        (&["--", "sh", "-c", "kill -TERM $$"], "exit 143"),
        (
            &["--", "sh", "-c", "echo out; echo err >&2"],
            "out\nerr\nexit 0",
        ),
        (
            &["--env", "A=b c", "--", "sh", "-c", "echo \"$A\""],
            "b c\nexit 0",
        ),
        (&["--cwd", "/usr/bin", "--", "pwd"], "/usr/bin\nexit 0"),
        (&["--user", "root", "--", "id", "-u"], "0\nexit 0"),
        (&["--cpus", "1", "--", "nproc"], "1\nexit 0"),
        (
            &["--timeout", "100ms", "--", "sleep", "100"],
            "atoll: killed: the deadline of 100ms was reached; set another with --timeout\nexit 124",
        ),
        (
            &[
                "--memory",
                "64M",
                "--",
                "python3",
                "-c",
                "bytearray(1 << 28)",
            ],
            "atoll: killed: the sandbox ran out of memory (64 MiB); give it more with --memory\nexit 137",
        ),
        (
            &["--", "no-such-program"],
            "atoll: \"no-such-program\" was not found in the sandbox\nexit 127",
        ),
        (
            &["--", "/etc/passwd"],
            "atoll: \"/etc/passwd\" cannot be run: Permission denied (os error 13)\nexit 126",
        ),
        (
            &["--cwd", "/nowhere", "--", "true"],
            "atoll: cwd \"/nowhere\" cannot be entered: No such file or directory (os error 2)\n  \
             hint: name a directory of the sandbox that the user may enter\nexit 125",
        ),
        (
            &["--user", "nobody-here", "--", "true"],
            "atoll: user \"nobody-here\" is not known in the sandbox\n  \
             hint: name a user of the sandbox's /etc/passwd, a number, or uid:gid\nexit 125",
        ),
        (
            &["--memory", "64G", "--", "true"],
            "atoll: memory 64 GiB is out of range\n  hint: choose memory from 16 MiB to 8 GiB, the ceiling of this host\nexit 125",
        ),
        (
            &["--mount", "/nowhere:/x", "--", "true"],
            "atoll: the mount source /nowhere cannot be opened: No such file or directory (os error 2)\n  \
             hint: name a file or directory of this host\nexit 125",
        ),
        (
            &["--upload", "/nowhere:x", "--", "true"],
            "atoll: the upload source /nowhere cannot be read: No such file or directory (os error 2)\n  \
             hint: name a file or directory of this machine\nexit 125",
        ),
        (
            &["--env", "novalue", "--", "true"],
            "atoll: \"novalue\" is not NAME=VALUE\n  hint: write --env NAME=VALUE\nexit 125",
        ),
    ];
    for (args, expected) in cases {
        let mut all = vec!["run"];
        all.extend_from_slice(args);
        assert_eq!(&output_text(&done(&all)), expected, "{args:?}");
    }
}

#[test]
fn run_that_fails_to_start_leaves_no_residue() {
    let scratch = Scratch::new();
    let data = own_data(&scratch);
    let run = |words: &[&str], name: &[&str]| {
        let words = [
            &["run", "--template", "one"],
            name,
            words,
            &["--", "/probe", "echo", "hi"],
        ];
        let mut command = atoll(&words.concat());
        command.env("ATOLL_DATA_DIR", &data);
        run_within(&mut command, Duration::from_mins(1), b"")
    };
    let found = || {
        let mut find = Command::new("find");
        let found = run_within(find.arg(&data), Duration::from_mins(1), b"");
        let mut found: Vec<String> = output_text(&found).lines().map(ToOwned::to_owned).collect();
        found.sort();
        found
    };
    for name in [&[][..], &["--name", "build"]] {
        assert_eq!(output_text(&run(&[], name)), "hi\nexit 0");
        let before = found();
        for words in [
            &["--user", "nobody-here"][..],
            &["--cwd", "/nowhere"],
            &["--upload", "/etc/hostname:/proc/x"],
            &["--mount", "/nowhere:/x"],
        ] {
            let output = run(words, name);
            assert_eq!(
                output.status.code(),
                Some(125),
                "{words:?}: {}",
                output_text(&output)
            );
            assert_eq!(found(), before, "{words:?}");
        }
    }
}

/// The upload of a very large file.
#[test]
fn a_signal_ends_a_run_that_copies_files() {
    let scratch = Scratch::new();
    let data = own_data(&scratch);
    let big = scratch.join("big");
    std::fs::File::create(&big)
        .unwrap()
        .set_len(4 << 30)
        .unwrap();
    let upload = format!("{}:/home/user/big", big.display());
    for name in [&[][..], &["--name", "build"]] {
        let words = [
            &["run", "--template", "one", "--upload", &upload],
            name,
            &["--", "/probe", "echo", "hi"],
        ];
        let mut command = atoll(&words.concat());
        command.env("ATOLL_DATA_DIR", &data).stderr(Stdio::null());
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        // The upload is in progress.
        let mut du = Command::new("sh");
        du.arg("-c").arg("du -sk \"$0\" | cut -f1").arg(&data);
        atoll_testkit::wait_for("some of it", Duration::from_mins(1), || {
            let size = run_within(&mut du, Duration::from_mins(1), b"");
            let size = String::from_utf8_lossy(&size.stdout).trim().parse::<u64>();
            size.unwrap_or(0) > 50 << 10
        });
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output_text(&output), "exit 130");
        let size = run_within(&mut du, Duration::from_mins(1), b"");
        let size = String::from_utf8_lossy(&size.stdout).trim().parse::<u64>();
        assert!(size.unwrap() < 50 << 10);
    }
}

#[test]
fn an_unknown_template_is_refused_with_the_known_ones() {
    let text = output_text(&done(&["run", "--template", "zz", "--", "true"]));
    assert!(
        text.starts_with("atoll: there is no template \"zz\"\n  hint: choose one of: "),
        "{text}"
    );
    assert!(
        text.contains("base") && text.ends_with("exit 125"),
        "{text}"
    );
}

#[test]
fn input_passes_through_byte_for_byte() {
    let bytes = atoll_testkit::pattern(5_000_000).to_vec();
    let mut command = atoll(&["run", "--", "cat"]);
    let output = run_within(&mut command, Duration::from_mins(1), &bytes);
    assert!(output.status.success() && output.stdout == bytes);
}

#[test]
fn closed_pipe_ends_the_command_with_sigpipe() {
    let line = format!(
        "{} run -- yes | head -1",
        crate::harness::binary().display()
    );
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("set -o pipefail; {line}")]);
    shell
        .env("ATOLL_DATA_DIR", crate::harness::data())
        .stdin(Stdio::null());
    let output = run_within(&mut shell, Duration::from_mins(1), b"");
    assert_eq!(output_text(&output), "y\nexit 141");
}

#[test]
fn files_go_in_before_and_come_out_after() {
    let scratch = Scratch::new();
    let project = scratch.join("project");
    std::fs::create_dir_all(project.join("deep/er")).unwrap();
    std::fs::write(project.join("deep/er/in.txt"), "one").unwrap();
    let out = scratch.join("out");
    let upload = format!("{}:work", project.display());
    let download = format!("work/deep:{}", out.display());
    let line = "cat deep/er/in.txt && echo two > deep/new.txt && ln -s /etc/passwd deep/link";
    let args = [
        "run",
        "--upload",
        &upload,
        "--download",
        &download,
        "--cwd",
        "work",
        "--",
        "sh",
        "-c",
        line,
    ];
    let text = output_text(&done(&args));
    assert!(
        text.starts_with("one") && text.ends_with("exit 0"),
        "{text}"
    );
    assert!(
        text.contains("left out 1 links and special files"),
        "{text}"
    );
    assert_eq!(
        std::fs::read_to_string(out.join("new.txt")).unwrap(),
        "two\n"
    );
    assert_eq!(
        std::fs::read_to_string(out.join("er/in.txt")).unwrap(),
        "one"
    );
    assert!(!out.join("link").exists());
}

#[test]
fn a_mount_shows_the_hosts_files_and_takes_no_writes() {
    let scratch = Scratch::new();
    std::fs::write(scratch.join("file"), "host").unwrap();
    open(scratch.path());
    let mount = format!("{}:/shown", scratch.path().display());
    let line =
        "cat /shown/file; echo x > /shown/file || echo refused; touch /shown/new || echo refused";
    let text = output_text(&done(&[
        "run", "--user", "root", "--mount", &mount, "--", "sh", "-c", line,
    ]));
    assert!(
        text.starts_with("host") && text.matches("refused").count() == 2,
        "{text}"
    );
    assert_eq!(
        std::fs::read_to_string(scratch.join("file")).unwrap(),
        "host"
    );
    assert!(!scratch.join("new").exists());
}

fn open(path: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_kept_sandbox_leaves_its_files_until_they_are_collected() {
    // A separate data directory: `gc --kept` removes all kept sandboxes.
    let scratch = Scratch::new();
    let data = own_data(&scratch);
    let own = |args: &[&str]| {
        let mut command = atoll(args);
        command.env("ATOLL_DATA_DIR", &data);
        run_within(&mut command, Duration::from_mins(1), b"")
    };
    let ran = own(&[
        "run",
        "--template",
        "one",
        "--keep",
        "--",
        "/probe",
        "write",
        "/home/user/kept",
        "hello",
    ]);
    let text = output_text(&ran);
    assert!(
        text.contains("atoll: kept i") && text.ends_with("exit 0"),
        "{text}"
    );
    let kept: Vec<_> = std::fs::read_dir(data.join("kept"))
        .unwrap()
        .flatten()
        .collect();
    assert_eq!(kept.len(), 1);
    let file = kept[0].path().join("upper/home/user/kept");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "hello");
    assert!(own(&["gc"]).status.success());
    assert_eq!(std::fs::read_dir(data.join("kept")).unwrap().count(), 1);
    assert!(output_text(&own(&["gc", "--kept"])).contains("1 kept"));
    assert_eq!(std::fs::read_dir(data.join("kept")).unwrap().count(), 0);
}

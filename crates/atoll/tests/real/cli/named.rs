//! `atoll run --name`: it outlives the process that started it, and the next one attaches to it.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use atoll_testkit::{Scratch, run_within, wait_for};
use rustix::process::{Pid, Signal, kill_process};

use super::{atoll, done, output_text};
use crate::harness::{self, DEADLINE};
use crate::restart::keeper;

/// A run of a test's own name.
struct Named {
    name: String,
}

impl Named {
    fn new(what: &str) -> Self {
        Self {
            name: format!("{what}-{}", std::process::id()),
        }
    }

    fn directory(&self) -> PathBuf {
        harness::data().join("named").join(&self.name)
    }

    fn tag(&self) -> String {
        fs::read_to_string(self.directory().join("tag")).unwrap()
    }

    fn args<'a>(&'a self, rest: &[&'a str]) -> Vec<&'a str> {
        [&["run", "--name", &self.name], rest].concat()
    }

    fn command(&self, rest: &[&str]) -> Command {
        atoll(&self.args(rest))
    }

    fn run(&self, rest: &[&str]) -> Output {
        done(&self.args(rest))
    }

    /// Starts a command and waits until it runs.
    fn begin(&self, options: &[&str], line: &str) -> Child {
        let rest = [options, &["--", "sh", "-c", line]].concat();
        let mut command = self.command(&rest);
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        self.wait_for_command();
        child
    }

    /// Waits until the command's start is recorded.
    fn wait_for_command(&self) {
        wait_for("the command", DEADLINE, || {
            let sandboxes = fs::read_dir(self.directory().join("sandboxes"));
            let mut written = sandboxes.into_iter().flatten().flatten();
            written.any(|entry| {
                let text = fs::read(entry.path().join("execs/records"));
                text.is_ok_and(|text| text.ends_with(b"\n"))
            })
        });
    }

    /// Asserts that the run left nothing on the machine.
    fn assert_gone(&self, tag: &str) {
        assert!(!self.directory().exists());
        assert!(!PathBuf::from("/run/atoll/instances").join(tag).exists());
        assert_eq!(keeper(tag), None);
        let facts = atoll_jail::facts::Facts::read();
        let groups = atoll_jail::cgroup::InstanceCgroup::tags(&facts);
        assert!(!groups.contains(&tag.to_owned()), "a control group is left");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&format!("named/{}", self.name)));
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        // After a failure.
        if self.directory().exists() {
            done(&["rm", &self.name]);
        }
    }
}

fn kill(mut child: Child, signal: Signal) {
    kill_process(Pid::from_child(&child), signal).unwrap();
    child.wait().unwrap();
}

/// Numbered lines on both streams, with pauses now and then; about 1 MB.
const LINES: &str = "i=0; while [ $i -lt 20000 ]; do echo \"this is line $i\"; echo \"error $i\" >&2; \
     i=$((i+1)); [ $((i % 500)) = 0 ] && sleep 0.05; done; exit 7";

fn lines(word: &str) -> Vec<u8> {
    (0..20_000)
        .flat_map(|number| format!("{word} {number}\n").into_bytes())
        .collect()
}

#[test]
fn runs_lose_no_output_when_clients_are_killed_repeatedly() {
    let both = [Named::new("first"), Named::new("second")];
    for named in &both {
        kill(named.begin(&[], LINES), Signal::KILL);
    }
    let tags: Vec<String> = both.iter().map(Named::tag).collect();
    for turn in 0..5_u64 {
        let clients: Vec<Child> = both
            .iter()
            .map(|named| {
                // Attaching works with and without the command.
                let rest: &[&str] = match turn % 2 {
                    0 => &[],
                    _ => &["--", "sh", "-c", LINES],
                };
                let mut command = named.command(rest);
                let command = command.stdout(Stdio::piped()).stderr(Stdio::null());
                let mut client = command.spawn().unwrap();
                // The output is printed from the beginning.
                let mut start = [0; 15];
                let stdout = client.stdout.as_mut().unwrap();
                std::io::Read::read_exact(stdout, &mut start).unwrap();
                assert_eq!(&start, b"this is line 0\n");
                client
            })
            .collect();
        // Each kill is at another point.
        std::thread::sleep(Duration::from_millis(30 * turn));
        for client in clients {
            kill(client, Signal::KILL);
        }
    }
    for (named, tag) in both.iter().zip(&tags) {
        let output = named.run(&[]);
        assert_eq!(output.status.code(), Some(7), "{}", output_text(&output));
        assert!(output.stdout == lines("this is line"));
        assert!(output.stderr == lines("error"));
        named.assert_gone(tag);
    }
}

#[test]
fn ended_detached_run_is_listed_kept_by_gc_and_reported() {
    let named = Named::new("ended");
    kill(
        named.begin(&[], "echo out; echo err >&2; sleep 2; exit 9"),
        Signal::KILL,
    );
    let tag = named.tag();
    let listed = || {
        let all: serde_json::Value =
            serde_json::from_slice(&done(&["ls", "--json"]).stdout).unwrap();
        let all = all.as_array().unwrap().clone();
        all.into_iter().find(|line| line["name"] == named.name)
    };
    wait_for("its end", DEADLINE, || {
        listed().unwrap()["state"] == "ended"
    });
    let line = listed().unwrap();
    assert_eq!(line["exitCode"], 9);
    assert!(line["command"].as_str().unwrap().starts_with("sh -c 'echo"));
    let table = output_text(&done(&["ls"]));
    let row = table.lines().find(|row| row.contains(&named.name)).unwrap();
    assert!(row.contains("ended") && row.contains("(exit 9)"), "{table}");
    assert!(done(&["gc"]).status.success());
    assert_eq!(output_text(&named.run(&[])), "out\nerr\nexit 9");
    named.assert_gone(&tag);
    assert!(listed().is_none());
}

#[test]
fn invalid_names_and_other_commands_are_refused_with_a_hint() {
    let named = Named::new("refused");
    let name = &named.name;
    assert_eq!(
        output_text(&named.run(&[])),
        format!(
            "atoll: there is no run with the name {name}\n  hint: start one: atoll run --name {name} -- CMD; \
             atoll ls shows those that are there\nexit 125"
        )
    );
    assert!(!named.directory().exists());
    for odd in ["", "-x", "Upper", "a/b", "..", "a_b", &"x".repeat(64)] {
        let output = done(&["run", &format!("--name={odd}"), "--", "true"]);
        let text = output_text(&output);
        assert!(
            text.contains("--name") && text.ends_with("exit 125"),
            "{text}"
        );
    }
    // A run that fails to start leaves nothing.
    let text = output_text(&named.run(&["--", "no-such-program"]));
    assert_eq!(
        text,
        "atoll: \"no-such-program\" was not found in the sandbox\nexit 127"
    );
    assert!(!named.directory().exists());

    let client = named.begin(&[], "sleep 1000");
    let pid = client.id();
    let text = output_text(&named.run(&[]));
    assert!(
        text.starts_with(&format!("atoll: process {pid} is attached to {name}"))
            && text.contains("hint: ")
            && text.ends_with("exit 125"),
        "{text}"
    );
    let removed = done(&["rm", name]);
    assert_eq!(removed.status.code(), Some(5), "{}", output_text(&removed));
    kill(client, Signal::KILL);
    let text = output_text(&named.run(&["--", "true"]));
    assert_eq!(
        text,
        format!(
            "atoll: {name} is there already (running), with another command: sh -c 'sleep 1000'\n  hint: attach to \
             it: atoll run --name {name}, or remove it: atoll rm {name}\nexit 125"
        )
    );
    let text = output_text(&named.run(&["--memory", "64M"]));
    assert!(text.contains("with other options"), "{text}");
    let tag = named.tag();
    assert_eq!(output_text(&done(&["rm", name])), format!("{name}\nexit 0"));
    named.assert_gone(&tag);
    let removed = done(&["rm", name]);
    assert_eq!(removed.status.code(), Some(4), "{}", output_text(&removed));
}

#[test]
fn interrupt_reaches_a_command_started_by_another_client() {
    let named = Named::new("interrupted");
    kill(named.begin(&[], "echo ready; sleep 1000"), Signal::KILL);
    let tag = named.tag();
    let mut command = named.command(&[]);
    let mut client = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut start = [0; 6];
    std::io::Read::read_exact(client.stdout.as_mut().unwrap(), &mut start).unwrap();
    kill_process(Pid::from_child(&client), Signal::INT).unwrap();
    assert_eq!(client.wait().unwrap().code(), Some(130));
    named.assert_gone(&tag);
}

#[test]
fn lost_terminal_neither_ends_nor_blocks_the_command() {
    let named = Named::new("hangup");
    let client = named.begin(&["--timeout", "60s"], &format!("{LINES}; exit 7"));
    let tag = named.tag();
    kill_process(Pid::from_child(&client), Signal::HUP).unwrap();
    // The client drains the output in the background, so the command can write more than a pipe holds.
    let output = client.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(129), "{}", output_text(&output));
    let text = output_text(&done(&["ls"]));
    let row = text.lines().find(|row| row.contains(&named.name)).unwrap();
    assert!(row.contains("ended") && row.contains("(exit 7)"), "{text}");
    let output = named.run(&[]);
    assert!(output.stdout == lines("this is line") && output.stderr == lines("error"));
    assert_eq!(output.status.code(), Some(7));
    named.assert_gone(&tag);
}

#[test]
fn client_in_the_background_yields_to_the_next_client() {
    let named = Named::new("minded");
    let client = named.begin(&[], "echo one; sleep 2; echo two; exit 3");
    let tag = named.tag();
    kill_process(Pid::from_child(&client), Signal::HUP).unwrap();
    wait_for("it to mind", DEADLINE, || {
        named.directory().join("minded").exists()
    });
    assert_eq!(output_text(&named.run(&[])), "one\ntwo\nexit 3");
    assert_eq!(client.wait_with_output().unwrap().status.code(), Some(129));
    named.assert_gone(&tag);
}

#[test]
fn input_continues_at_its_offset() {
    let named = Named::new("input");
    let bytes = atoll_testkit::pattern(3_000_000).to_vec();
    let line = &["--", "sh", "-c", "sleep 1; cat"];
    let mut command = named.command(line);
    let mut client = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    named.wait_for_command();
    let mut input = client.stdin.take().unwrap();
    input.write_all(&bytes[..1_000_000]).unwrap();
    kill(client, Signal::KILL);
    drop(input);
    let tag = named.tag();
    // A command without output is still running.
    let mut silent = named.command(&[]).stdout(Stdio::piped()).spawn().unwrap();
    let mut start = [0; 1000];
    std::io::Read::read_exact(silent.stdout.as_mut().unwrap(), &mut start).unwrap();
    assert_eq!(start, bytes[..1000]);
    kill(silent, Signal::KILL);
    // The same command again, with all of its input.
    let output = run_within(&mut named.command(line), Duration::from_mins(1), &bytes);
    assert!(output.stdout == bytes, "{}", output.stdout.len());
    assert!(output.status.success());
    named.assert_gone(&tag);
}

#[test]
fn deadline_and_file_copies_need_no_attached_client() {
    let named = Named::new("deadline");
    let scratch = Scratch::new();
    let download = format!("made:{}", scratch.join("made").display());
    let options = ["--timeout", "1s", "--download", &download];
    let client = named.begin(&options, "echo here > made; echo ready; sleep 1000");
    let tag = named.tag();
    kill(client, Signal::KILL);
    assert_eq!(
        output_text(&named.run(&[])),
        "ready\natoll: killed: the deadline of 1s was reached; set another with --timeout\nexit 124"
    );
    assert_eq!(fs::read_to_string(scratch.join("made")).unwrap(), "here\n");
    named.assert_gone(&tag);
}

#[test]
fn run_after_reboot_reports_the_end_and_the_place_of_files() {
    let named = Named::new("lost");
    kill(
        named.begin(&[], "echo kept > file; echo ready; sleep 1000"),
        Signal::KILL,
    );
    let tag = named.tag();
    // Waits until the command has written its file.
    wait_for("the file", DEADLINE, || {
        let sandboxes = fs::read_dir(named.directory().join("sandboxes")).unwrap();
        let mut files = sandboxes
            .flatten()
            .map(|entry| entry.path().join("upper/home/user/file"));
        files.any(|file| fs::read(file).is_ok_and(|text| text == b"kept\n"))
    });
    done(&["ls"]);
    let pid = Pid::from_raw(keeper(&tag).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    wait_for("the keeper to be gone", DEADLINE, || keeper(&tag).is_none());
    for sandbox in fs::read_dir(named.directory().join("sandboxes"))
        .unwrap()
        .flatten()
    {
        let path = sandbox.path().join("record.json");
        let mut record: serde_json::Value =
            serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        record["boot"] = "another".into();
        fs::write(&path, record.to_string()).unwrap();
    }
    assert!(done(&["gc"]).status.success());
    let table = output_text(&done(&["ls"]));
    let row = table.lines().find(|row| row.contains(&named.name)).unwrap();
    assert!(row.contains("lost"), "{table}");
    for _ in 0..2 {
        let text = output_text(&named.run(&[]));
        let name = &named.name;
        let lost =
            format!("ready\natoll: the command of {name} was lost with the machine's restart\n");
        assert!(text.starts_with(&lost), "{text}");
        assert!(
            text.contains("/upper; remove it with atoll rm") && text.ends_with("exit 125"),
            "{text}"
        );
    }
    assert!(done(&["rm", &named.name]).status.success());
    named.assert_gone(&tag);
}

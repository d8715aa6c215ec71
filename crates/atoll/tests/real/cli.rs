//! The command-line interface: input, output, exit codes, and files left behind.

mod named;
mod parallel;
mod run;
mod signals;

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use atoll_testkit::{Scratch, run_within};

use crate::harness;

/// `atoll` on the data directory that all tests share.
pub fn atoll(args: &[&str]) -> Command {
    let mut command = Command::new(harness::binary());
    command.args(args).env("ATOLL_DATA_DIR", harness::data());
    // Ignores the server settings of the user's environment.
    command
        .env_remove("ATOLL_URL")
        .env("XDG_CONFIG_HOME", "/nowhere");
    command.stdin(Stdio::null());
    command
}

/// Runs it to its end.
pub fn done(args: &[&str]) -> Output {
    run_within(&mut atoll(args), Duration::from_mins(2), b"")
}

/// A data directory of the test's own, with the template `one` of a static binary.
pub fn own_data(scratch: &Scratch) -> PathBuf {
    let (layer, data) = (scratch.join("layer"), scratch.join("data"));
    atoll_testkit::static_layer(&layer);
    let mut add = atoll(&["template", "add", "one", layer.to_str().unwrap()]);
    let added = run_within(
        add.env("ATOLL_DATA_DIR", &data),
        Duration::from_mins(1),
        b"",
    );
    assert!(added.status.success(), "{}", output_text(&added));
    data
}

/// Standard output, standard error and exit code in one text.
pub fn output_text(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!(
        "{}{}exit {}",
        text(&output.stdout),
        text(&output.stderr),
        output.status.code().unwrap_or(-1)
    )
}

#[test]
fn doctor_accepts_this_host_as_text_and_json() {
    // Otherwise the server would enable IP forwarding on this machine.
    let host = atoll_jail::netns::create().unwrap();
    let doctor = |words: &[&str]| atoll_jail::netns::within(host.as_fd(), || done(words)).unwrap();
    let output = doctor(&["doctor"]);
    let text = output_text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("yes  a sandbox"), "{text}");
    assert!(text.contains("yes  network internet"), "{text}");
    let output = doctor(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(["A", "B"].contains(&report["grade"].as_str().unwrap()));
    let checks = report["checks"].as_array().unwrap();
    assert!(
        checks
            .iter()
            .all(|check| check["ok"] == true || check["remedy"].is_string())
    );
}

#[test]
fn doctor_uses_the_templates_that_the_environment_names() {
    done(&["run", "--", "true"]);
    let scratch = Scratch::new();
    let mut doctor = atoll(&["doctor", "--json"]);
    doctor
        .env("ATOLL_DATA_DIR", scratch.join("data"))
        .env("ATOLL_TEMPLATES_DIR", harness::data().join("templates"));
    // Otherwise the server would enable IP forwarding on this machine.
    let host = atoll_jail::netns::create().unwrap();
    let run = || run_within(&mut doctor, Duration::from_mins(1), b"");
    let output = atoll_jail::netns::within(host.as_fd(), run).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let sandbox = checks.iter().find(|check| check["feature"] == "a sandbox");
    assert_eq!(sandbox.unwrap()["ok"], true, "{report}");
}

/// ramfs never could; on some kernels tmpfs cannot either.
#[test]
fn a_file_system_without_id_mapping_is_reported_with_a_remedy() {
    let scratch = Scratch::new();
    let data = scratch.join("data");
    std::fs::create_dir(&data).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &data, "ramfs", flags, Some(c"mode=700")).unwrap();
    let mut doctor = Command::new(harness::binary());
    doctor
        .args(["doctor", "--json"])
        .env("ATOLL_DATA_DIR", &data);
    let output = run_within(&mut doctor, Duration::from_mins(1), b"");
    assert_eq!(output.status.code(), Some(1), "{}", output_text(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let sandbox = checks.iter().find(|check| check["feature"] == "a sandbox");
    let remedy = sandbox.unwrap()["remedy"].as_str().unwrap();
    assert!(
        remedy.starts_with("keep the data directory on ext4"),
        "{remedy}"
    );
}

#[test]
fn doctor_and_run_without_root_fail_with_the_reason() {
    let scratch = Scratch::new();
    // The binary must be accessible to an unprivileged user.
    let copy = scratch.join("atoll");
    std::fs::copy(harness::binary(), &copy).unwrap();
    open_to_all(scratch.path());
    let unprivileged = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        command
            .arg(&copy)
            .args(args)
            .env("ATOLL_DATA_DIR", scratch.join("data"));
        run_within(command.stdin(Stdio::null()), Duration::from_mins(1), b"")
    };
    let output = unprivileged(&["doctor"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        output_text(&output).contains("Grade F"),
        "{}",
        output_text(&output)
    );
    // A file that the user cannot read is an error, and not treated as missing.
    let config = scratch.join("config");
    std::fs::create_dir_all(config.join("atoll")).unwrap();
    let file = config.join("atoll/config.toml");
    std::fs::write(
        &file,
        "default = \"x\"\n[profiles.x]\nurl = \"http://127.0.0.1:1\"\n",
    )
    .unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    command.arg(&copy).args(["sandbox", "ls"]);
    command
        .env("XDG_CONFIG_HOME", &config)
        .env_remove("ATOLL_URL");
    let output = run_within(command.stdin(Stdio::null()), Duration::from_mins(1), b"");
    assert_eq!(output.status.code(), Some(2), "{}", output_text(&output));
    assert!(
        output_text(&output).contains("cannot be read"),
        "{}",
        output_text(&output)
    );
    let output = unprivileged(&["run", "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(
        output_text(&output).contains("run atoll as root"),
        "{}",
        output_text(&output)
    );
}

fn open_to_all(path: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt;
    for path in path
        .ancestors()
        .take(2)
        .chain([path.join("atoll").as_path()])
    {
        let mode = std::fs::metadata(path).unwrap().permissions().mode();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode | 0o755)).unwrap();
    }
}

#[test]
fn every_command_shows_examples_and_shells_complete_them() {
    let help = output_text(&done(&["--help"]));
    let (_, listed) = help.split_once("Commands:\n").unwrap();
    let lines = listed.lines().take_while(|line| !line.is_empty());
    // A description may take several lines.
    let begins = lines.filter_map(|line| line.strip_prefix("  ").filter(|it| !it.starts_with(' ')));
    let names = begins.filter_map(|line| line.split_whitespace().next());
    let names: Vec<&str> = names.collect();
    assert!(names.len() > 22, "{help}");
    for command in names {
        let output = done(&[command, "--help"]);
        let text = output_text(&output);
        assert!(
            output.status.success() && text.contains("Example"),
            "{command}: {text}"
        );
    }
    for shell in ["bash", "zsh", "fish"] {
        let text = output_text(&done(&["completions", shell]));
        assert!(
            text.contains("doctor") && text.contains("template"),
            "{shell}"
        );
    }
}

#[test]
fn templates_are_added_listed_used_and_removed() {
    let scratch = Scratch::new();
    let layer = scratch.join("layer");
    atoll_testkit::static_layer(&layer);
    let name = format!("cli-{}", std::process::id());
    let added = done(&["template", "add", &name, layer.to_str().unwrap()]);
    assert!(added.status.success(), "{}", output_text(&added));
    assert!(output_text(&done(&["template", "ls"])).contains(&name));
    let ran = done(&["run", "--template", &name, "--", "/probe", "echo", "hi"]);
    assert_eq!(output_text(&ran), "hi\nexit 0");
    let again = done(&["template", "add", &name, layer.to_str().unwrap()]);
    assert_eq!(again.status.code(), Some(5), "{}", output_text(&again));
    assert!(done(&["template", "rm", &name]).status.success());
    let gone = done(&["template", "rm", &name]);
    assert_eq!(gone.status.code(), Some(4), "{}", output_text(&gone));
    let odd = done(&["template", "add", "No/Name", layer.to_str().unwrap()]);
    assert_eq!(odd.status.code(), Some(2), "{}", output_text(&odd));
}

#[test]
fn a_template_from_an_archive_works_like_one_from_a_directory() {
    let scratch = Scratch::new();
    let layer = scratch.join("layer");
    atoll_testkit::static_layer(&layer);
    let archive = scratch.join("layer.tar.gz");
    let mut tar = Command::new("tar");
    tar.arg("-czf").arg(&archive).arg("-C").arg(&layer).arg(".");
    assert!(
        run_within(&mut tar, Duration::from_mins(1), b"")
            .status
            .success()
    );
    let name = format!("tar-{}", std::process::id());
    let added = done(&["template", "add", &name, archive.to_str().unwrap()]);
    assert!(added.status.success(), "{}", output_text(&added));
    let ran = done(&["run", "--template", &name, "--", "/probe", "echo", "hi"]);
    assert_eq!(output_text(&ran), "hi\nexit 0");
    assert!(done(&["template", "rm", &name]).status.success());
}

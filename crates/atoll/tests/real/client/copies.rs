//! Copies of files and directories in both directions preserve contents and metadata.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use atoll_testkit::{Scratch, run};

use super::{atoll, done, shell_in_web, stdout_of, tried, with_web};
use crate::cli::output_text;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o777
}

/// A tree with something of every kind.
fn tree(top: &Path) {
    fs::create_dir_all(top.join("empty")).unwrap();
    fs::create_dir_all(top.join("deep/er")).unwrap();
    fs::write(top.join("program"), "#!/bin/sh\necho works\n").unwrap();
    set_mode(&top.join("program"), 0o755);
    fs::write(top.join("deep/er/secret"), "x".repeat(300_000)).unwrap();
    set_mode(&top.join("deep/er/secret"), 0o600);
    set_mode(&top.join("deep"), 0o750);
    fs::write(top.join("nothing"), "").unwrap();
    fs::write(top.join("n".repeat(200)), "long").unwrap();
    fs::hard_link(top.join("program"), top.join("same")).unwrap();
    symlink("program", top.join("link")).unwrap();
    symlink("/nowhere", top.join("dangling")).unwrap();
}

fn alike(one: &Path, other: &Path) {
    let output = run(Command::new("diff")
        .args(["-r", "--no-dereference"])
        .arg(one)
        .arg(other));
    assert!(output.status.success(), "{}", output_text(&output));
    for name in ["program", "deep", "deep/er/secret", "empty", "nothing"] {
        assert_eq!(mode(&one.join(name)), mode(&other.join(name)), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copied_directory_round_trips() {
    let server = with_web().await;
    let scratch = Scratch::new();
    let (there, back) = (scratch.join("tree"), scratch.join("back"));
    tree(&there);
    let (from, to) = (there.to_str().unwrap(), back.to_str().unwrap());
    // A new name becomes the copy; an existing directory gets the copy in it.
    assert_eq!(stdout_of(&server, &["cp", from, "web:copy"]), "");
    assert_eq!(
        stdout_of(&server, &["exec", "web", "copy/program"]),
        "works\n"
    );
    assert_eq!(
        stdout_of(
            &server,
            &["exec", "web", "readlink", "copy/link", "copy/dangling"]
        ),
        "program\n/nowhere\n"
    );
    assert_eq!(
        stdout_of(
            &server,
            &["exec", "web", "stat", "-c", "%a %U", "copy/deep/er/secret"]
        ),
        "600 user\n"
    );
    stdout_of(&server, &["cp", from, "web:copy"]);
    assert_eq!(
        stdout_of(&server, &["exec", "web", "ls", "copy/tree/deep"]),
        "er\n"
    );
    stdout_of(&server, &["files", "rm", "-r", "web", "copy/tree"]);
    stdout_of(&server, &["cp", "web:copy", to]);
    alike(&there, &back);
    // A repeated copy into the existing directory, then a copy of the contents only.
    stdout_of(&server, &["cp", &format!("{from}/."), "web:copy"]);
    stdout_of(&server, &["cp", "web:copy/.", to]);
    alike(&there, &back);
    stdout_of(&server, &["cp", "web:copy", to]);
    alike(&there, &back.join("copy"));
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copied_file_keeps_its_mode_and_appears_atomically() {
    let server = with_web().await;
    let scratch = Scratch::new();
    let file = scratch.join("tool");
    fs::write(&file, "#!/bin/sh\necho tool\n").unwrap();
    set_mode(&file, 0o750);
    let file = file.to_str().unwrap();
    stdout_of(&server, &["cp", file, "web:"]);
    stdout_of(&server, &["cp", file, "web:dir/"]);
    stdout_of(&server, &["cp", file, "web:dir/other"]);
    assert_eq!(
        shell_in_web(&server, "./tool; dir/tool; dir/other"),
        "tool\n".repeat(3)
    );
    let target = scratch.join("back");
    symlink("/etc/passwd", &target).unwrap();
    let before = fs::read("/etc/passwd").unwrap();
    stdout_of(&server, &["cp", "web:tool", target.to_str().unwrap()]);
    assert_eq!(mode(&target), 0o750);
    assert_eq!(fs::read("/etc/passwd").unwrap(), before);
    assert_eq!(
        fs::read_to_string(&target).unwrap(),
        "#!/bin/sh\necho tool\n"
    );
    // Set-id bits are not copied to the host.
    shell_in_web(&server, "cp tool set; chmod 4755 set; mkdir d; cp -p set d");
    stdout_of(
        &server,
        &["cp", "web:set", scratch.path().to_str().unwrap()],
    );
    stdout_of(&server, &["cp", "web:d", scratch.path().to_str().unwrap()]);
    for name in ["set", "d/set"] {
        assert_eq!(
            fs::metadata(scratch.join(name)).unwrap().mode() & 0o7777,
            0o755,
            "{name}"
        );
    }
    let names: Vec<_> = fs::read_dir(scratch.path())
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(names.len(), 4, "{names:?}");
    server.close().await;
}

/// A sandbox chooses the names: none of them leads out of the directory that was named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn download_never_writes_through_a_link() {
    let server = with_web().await;
    let scratch = Scratch::new();
    let (target, outside) = (scratch.join("target"), scratch.join("outside"));
    fs::create_dir_all(&outside).unwrap();
    fs::create_dir_all(&target).unwrap();
    symlink(&outside, target.join("way")).unwrap();
    shell_in_web(&server, "mkdir -p t/way; echo x > t/way/out");
    let (text, code) = tried(&server, &["cp", "web:t/.", target.to_str().unwrap()]);
    assert!(
        code == Some(2) && text.contains("way/ cannot be written"),
        "{text}"
    );
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    // Special files are skipped, and reported.
    shell_in_web(&server, "mkdir s; mkfifo s/fifo; echo y > s/file");
    let output = done(
        atoll(&server, &["cp", "web:s", scratch.path().to_str().unwrap()]),
        b"",
    );
    assert!(output.status.success(), "{}", output_text(&output));
    assert_eq!(fs::read_to_string(scratch.join("s/file")).unwrap(), "y\n");
    let fifo = scratch.join("s/in");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    let output = done(
        atoll(
            &server,
            &["cp", scratch.join("s").to_str().unwrap(), "web:again"],
        ),
        b"",
    );
    assert!(
        output_text(&output).contains("left out 1: in (a special file)"),
        "{}",
        output_text(&output)
    );
    server.close().await;
}

//! Inputs of a command: program, arguments, environment, directory. Streams, identity and exit are in the files
//! below.

mod ending;
mod flood;
mod identity;
mod kept;
mod memory;
mod streams;

use std::collections::BTreeMap;

use atoll_model::{Code, Error, ExecSpec, SandboxId, SandboxSpec};
use atoll_testkit::{Scratch, static_layer};
use atoll_worker::template::{Source, TemplateOptions, TemplateStore};

use crate::harness::{Kind, World, in_both, private, probe_spec, stdout_text};

/// The error of a command that must not start.
async fn refused(world: &World, id: &SandboxId, spec: ExecSpec) -> Error {
    world.runtime.exec(id, spec).await.unwrap_err()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arguments_arrive_byte_for_byte() {
    in_both(async |world, id| {
        let words: [&[u8]; 6] = [b"/probe", b"args", b"", b"a b\n'\"$X*", b"\xff\xfe", b"--"];
        let done = world.exec(id, ExecSpec::argv(words)).await;
        let expected = "0 /probe\n1 args\n2 \n3 a b\\n\\'\\\"$X*\n4 \\xff\\xfe\n5 --\n";
        assert_eq!(stdout_text(&done), expected);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_megabyte_of_arguments_and_of_environment_arrives() {
    in_both(async |world, id| {
        let word = "w".repeat(100_000);
        let mut argv = vec!["/probe", "echo"];
        argv.extend([word.as_str(); 10]);
        let done = world.exec(id, ExecSpec::argv(&argv)).await;
        assert_eq!(stdout_text(&done), argv[2..].join(" ") + "\n");

        let mut spec = probe_spec(&["env"]);
        for number in 0..10 {
            spec = spec.variable(format!("BIG_{number}"), &word);
        }
        let done = world.exec(id, spec).await;
        let found = stdout_text(&done)
            .lines()
            .filter(|line| line.starts_with("BIG_") && line.ends_with(&word))
            .count();
        assert_eq!(found, 10);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_arguments_are_refused_without_side_effects() {
    in_both(async |world, id| {
        for count in [30, 60, 600] {
            let mut argv = vec!["/probe".to_owned(), "echo".to_owned()];
            argv.extend((0..count).map(|_| "w".repeat(100_000)));
            let error = refused(world, id, ExecSpec::argv(&argv)).await;
            assert!(
                matches!(error.code, Code::ProgramNotFound | Code::InvalidRequest),
                "{count}: {error:?}"
            );
            let text = error.message.to_lowercase();
            assert!(
                text.contains("argument") && text.contains("long"),
                "{error:?}"
            );
        }
        assert_eq!(
            stdout_text(&world.probe(id, "", &["echo", "alive"]).await),
            "alive\n"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shell_line_is_run_by_sh() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    let line = "echo $((6*7)); echo \"in $PWD\" >&2; exit 3";
    let done = world.exec(&id, ExecSpec::shell(line)).await;
    assert_eq!(done.stdout, b"42\n");
    assert_eq!(done.stderr, b"in /home/user\n");
    assert_eq!(done.status.code, Some(3));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shell_line_without_a_shell_names_the_shell() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    let error = refused(&world, &id, ExecSpec::shell("true")).await;
    assert_eq!(error.code, Code::ProgramNotFound);
    assert!(error.message.contains("/bin/sh"), "{error:?}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_are_looked_up_in_path() {
    in_both(async |world, id| {
        let spec = ExecSpec::argv(["probe", "echo", "found"]).variable("PATH", "/nowhere::/");
        assert_eq!(stdout_text(&world.exec(id, spec).await), "found\n");
        let spec = ExecSpec::argv(["./probe", "echo", "here"]).directory("/");
        assert_eq!(stdout_text(&world.exec(id, spec).await), "here\n");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_program_exits_with_127() {
    in_both(async |world, id| {
        for program in [
            "/nowhere/at-all",
            "no-such-program",
            "nowhere/else",
            "/probe/below",
        ] {
            let error = refused(world, id, ExecSpec::argv([program])).await;
            assert_eq!(error.code, Code::ProgramNotFound);
            assert!(error.message.contains(program), "{error:?}");
            let expected = if program == "/probe/below" {
                "126"
            } else {
                "127"
            };
            assert_eq!(error.details["exitCode"], expected, "{error:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn non_executable_file_exits_with_126() {
    in_both(async |world, id| {
        stdout_text(&world.probe(id, "root", &["write", "/plain", "text"]).await);
        for program in ["/plain", "/", "/proc"] {
            let error = refused(world, id, ExecSpec::argv([program])).await;
            assert_eq!(error.code, Code::ProgramNotFound);
            assert_eq!(error.details["exitCode"], "126", "{error:?}");
            assert_eq!(error.details["program"], program);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn script_without_shebang_is_run_by_sh() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    let text = ["write", "/script", "echo \"from a script: $1\"\n"];
    stdout_text(&world.probe(&id, "root", &text).await);
    stdout_text(&world.probe(&id, "root", &["chmod", "/script", "755"]).await);
    let done = world.exec(&id, ExecSpec::argv(["/script", "word"])).await;
    assert_eq!(stdout_text(&done), "from a script: word\n");
    // A single process: with two, the terminal would close with the first.
    let size = atoll_model::TerminalSize {
        rows: 24,
        columns: 80,
    };
    let script = ExecSpec::argv(["/script", "word"]).terminal(size);
    assert_eq!(
        stdout_text(&world.exec(&id, script).await),
        "from a script: word\r\n"
    );
    world.close().await;
}

/// The names of the variables a command has, in order.
fn names(text: &str) -> Vec<&str> {
    text.lines()
        .filter_map(|line| Some(line.split_once('=')?.0))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn environment_has_no_variables_of_the_host() {
    in_both(async |world, id| {
        let done = world.exec(id, probe_spec(&["env"])).await;
        let built_in = [
            "PATH",
            "HOME",
            "USER",
            "LOGNAME",
            "SHELL",
            "LANG",
            "ATOLL_SANDBOX_ID",
        ];
        let text = stdout_text(&done);
        assert_eq!(names(text), built_in);
        assert!(
            text.contains(&format!("\nATOLL_SANDBOX_ID={id}\n")),
            "{text}"
        );
        assert!(
            text.contains("\nHOME=/home/user\nUSER=user\nLOGNAME=user\n"),
            "{text}"
        );
        assert!(text.contains("\nLANG=C.UTF-8\n"), "{text}");
        let root = world.probe(id, "root", &["env"]).await;
        assert!(
            stdout_text(&root).contains("\nHOME=/root\nUSER=root\n"),
            "{root:?}"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exec_overrides_sandbox_and_sandbox_overrides_template() {
    let scratch = Scratch::new();
    static_layer(&scratch.join("tree"));
    private(&scratch.join("data"));
    let store = TemplateStore::open(scratch.join("data/templates")).unwrap();
    let pairs = |text: &str| -> BTreeMap<String, String> {
        let pair = |pair: &str| {
            pair.split_once('=')
                .map(|(name, value)| (name.into(), value.into()))
        };
        text.split(' ').filter_map(pair).collect()
    };
    let options = TemplateOptions {
        env: pairs("LANG=template A=template B=template C=template"),
        ..TemplateOptions::default()
    };
    let source = Source::Directory(scratch.join("tree"));
    store.add("own", &source, &options, &mut |_| {}).unwrap();
    let world = World::open_in(&scratch.join("data")).await;
    let spec = SandboxSpec {
        template: "own".into(),
        environment: pairs("B=sandbox C=sandbox D=sandbox"),
        ..SandboxSpec::default()
    };
    let id = world.runtime.create(spec).await.unwrap().id;
    let call = probe_spec(&["env"])
        .variable("C", "call")
        .variable("E", "first")
        .variable("E", "call")
        .variable("USER", "");
    let done = world.exec(&id, call).await;
    let mut wanted = pairs("A=template B=sandbox C=call D=sandbox E=call LANG=template USER=");
    for line in stdout_text(&done).lines() {
        let (name, value) = line.split_once('=').unwrap();
        if let Some(expected) = wanted.remove(name) {
            assert_eq!(value, expected, "{name}");
        }
    }
    assert!(wanted.is_empty(), "missing: {wanted:?}");
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nul_byte_is_refused_by_the_name_of_its_field() {
    in_both(async |world, id| {
        let specs = [
            ("command", probe_spec(&["echo", "a\0b"])),
            ("command", ExecSpec::shell("echo \0")),
            ("env", probe_spec(&["true"]).variable("A", "a\0b")),
            ("env", probe_spec(&["true"]).variable("A\0", "b")),
            ("env", probe_spec(&["true"]).variable("", "b")),
            ("env", probe_spec(&["true"]).variable("A=B", "b")),
            ("cwd", probe_spec(&["true"]).directory("/a\0b")),
            ("command", ExecSpec::argv::<&str>([])),
            ("command", ExecSpec::argv([""])),
        ];
        for (field, spec) in specs {
            let error = refused(world, id, spec).await;
            assert_eq!(error.code, Code::InvalidRequest, "{field}");
            assert_eq!(error.details["field"], field);
        }
        let error = refused(world, id, probe_spec(&["true"]).user("ro\0ot")).await;
        assert_eq!(error.code, Code::UnknownUser);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn working_directory_is_home_or_the_requested_one() {
    in_both(async |world, id| {
        stdout_text(&world.probe(id, "", &["mkdir", "/home/user/work"]).await);
        stdout_text(
            &world
                .probe(id, "", &["link", "work", "/home/user/link"])
                .await,
        );
        for (directory, reached) in [
            (None, "/home/user"),
            (Some("/"), "/"),
            (Some("/home/user/work/"), "/home/user/work"),
            (Some("work"), "/home/user/work"),
            (Some("./work/.."), "/home/user"),
            (Some("~"), "/home/user"),
            (Some("~/work"), "/home/user/work"),
            (Some("link"), "/home/user/work"),
        ] {
            let mut spec = probe_spec(&["pwd"]);
            spec.directory = directory.map(|path| path.as_bytes().to_vec());
            let done = world.exec(id, spec).await;
            assert_eq!(stdout_text(&done), format!("{reached}\n"), "{directory:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_home_falls_back_to_the_root_directory() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    assert_eq!(
        stdout_text(&world.probe(&id, "user", &["pwd"]).await),
        "/\n"
    );
    assert_eq!(
        stdout_text(&world.probe(&id, "root", &["pwd"]).await),
        "/\n"
    );
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_working_directory_that_cannot_be_entered_is_named() {
    in_both(async |world, id| {
        stdout_text(&world.probe(id, "root", &["mkdir", "/private"]).await);
        stdout_text(&world.probe(id, "root", &["chmod", "/private", "700"]).await);
        for path in ["/no/such/place", "nor-here", "/probe", "/private"] {
            let error = refused(world, id, probe_spec(&["true"]).directory(path)).await;
            assert_eq!(error.code, Code::CwdNotFound);
            assert_eq!(error.details["cwd"], path);
            assert!(error.message.contains(path), "{error:?}");
        }
        let spec = probe_spec(&["pwd"]).directory("/private").user("root");
        assert_eq!(stdout_text(&world.exec(id, spec).await), "/private\n");
    })
    .await;
}

//! Standard streams: every byte, in order, each stream by itself.

use atoll_model::ExecSpec;
use atoll_testkit::{fnv64, pattern};
use tokio::task::JoinSet;

use crate::harness::{in_both, probe_spec, stdout_text};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stdin_is_empty_unless_the_caller_writes_to_it() {
    in_both(async |world, id| {
        let nothing = format!("bytes 0 fnv64 {:016x}\n", fnv64(b""));
        assert_eq!(
            stdout_text(&world.probe(id, "user", &["hash"]).await),
            nothing
        );
        let done = world.exec(id, probe_spec(&["hash"]).piped_stdin()).await;
        assert_eq!(stdout_text(&done), nothing);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_megabyte_of_input_arrives_whole() {
    in_both(async |world, id| {
        let input = pattern(1_000_003).to_vec();
        let spec = probe_spec(&["hash"]).piped_stdin();
        let done = world.exec_with(id, spec, &input).await;
        let expected = format!("bytes {} fnv64 {:016x}\n", input.len(), fnv64(&input));
        assert_eq!(stdout_text(&done), expected);
        let spec = probe_spec(&["cat"]).piped_stdin();
        let done = world.exec_with(id, spec, &input).await;
        assert_eq!(fnv64(stdout_text(&done).as_bytes()), fnv64(&input));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_input_is_no_error() {
    in_both(async |world, id| {
        let input = vec![b'x'; 3 << 20];
        let spec = probe_spec(&["exit", "7"]).piped_stdin();
        let done = world.exec_with(id, spec, &input).await;
        assert_eq!(done.status.code, Some(7));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn input_and_output_can_alternate() {
    in_both(async |world, id| {
        let spec = probe_spec(&["cat"]).piped_stdin();
        let mut exec = world.runtime.exec(id, spec).await.unwrap();
        for word in ["one", "two", "three"] {
            exec.handle.write_stdin(word.as_bytes()).await.unwrap();
            let mut heard = Vec::new();
            while heard.len() < word.len() {
                let mut buffer = [0; 64];
                let read = exec.stdout.read(&mut buffer).await.unwrap();
                assert!(read > 0);
                heard.extend_from_slice(&buffer[..read]);
            }
            assert_eq!(heard, word.as_bytes());
        }
        exec.handle.close_stdin().unwrap();
        assert_eq!(exec.stdout.read(&mut [0; 64]).await.unwrap(), 0);
        assert!(exec.wait().await.success());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_and_errors_are_apart_and_complete() {
    in_both(async |world, id| {
        let done = world.probe(id, "user", &["both", "5000"]).await;
        assert!(done.status.success());
        let lines = |name: &str| {
            let lines: Vec<_> = (1..=5000).map(|n| format!("{name} {n}\n")).collect();
            lines.concat()
        };
        assert_eq!(done.stdout, lines("out").as_bytes());
        assert_eq!(done.stderr, lines("err").as_bytes());
        assert!(!done.truncated);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_megabytes_of_output_are_byte_exact() {
    in_both(async |world, id| {
        let size = 16_000_001;
        let expected = pattern(size).to_vec();
        let size = size.to_string();
        let done = world.probe(id, "user", &["spew", &size]).await;
        assert_eq!(done.stdout.len(), expected.len());
        assert_eq!(fnv64(&done.stdout), fnv64(&expected));
        let done = world.probe(id, "user", &["spew", &size, "stderr"]).await;
        assert!(done.stdout.is_empty());
        assert_eq!(fnv64(&done.stderr), fnv64(&expected));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_is_bytes_and_not_text() {
    in_both(async |world, id| {
        let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        let spec = probe_spec(&["cat"]).piped_stdin();
        let done = world.exec_with(id, spec, &bytes).await;
        assert_eq!(done.stdout, bytes);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_above_the_limit_is_dropped_and_counted() {
    in_both(async |world, id| {
        let exec = world.runtime.exec(id, probe_spec(&["spew", "300000"]));
        let done = exec.await.unwrap().finish(b"", 100_000).await.unwrap();
        assert!(done.truncated);
        assert!(done.status.success());
        assert_eq!(done.stdout, pattern(100_000).to_vec());
        let exec = world.runtime.exec(id, probe_spec(&["spew", "100000"]));
        let done = exec.await.unwrap().finish(b"", 100_000).await.unwrap();
        assert!(!done.truncated);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_commands_at_once_do_not_mix() {
    in_both(async |world, id| {
        let mut all = JoinSet::new();
        for number in 0..50_u32 {
            let (runtime, id) = (world.runtime.clone(), id.clone());
            all.spawn(async move {
                let input = format!("command {number}\n").repeat(5000);
                let spec = ExecSpec::argv(["/probe", "cat"]).piped_stdin();
                let exec = runtime.exec(&id, spec).await.unwrap();
                let done = exec.finish(input.as_bytes(), 1 << 20).await.unwrap();
                assert_eq!(stdout_text(&done), input);
                number
            });
        }
        let mut ended = all.join_all().await;
        ended.sort_unstable();
        assert_eq!(ended, (0..50).collect::<Vec<_>>());
    })
    .await;
}

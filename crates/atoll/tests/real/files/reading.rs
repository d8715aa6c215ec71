//! Whole and partial reads, and metadata.

use std::time::{Duration, SystemTime};

use atoll_model::{Code, FileKind, RunAs};
use atoll_testkit::pattern;

use super::{Files, code, owner, user};
use crate::harness::{in_both, stdout_text};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn range_of_a_file_is_read() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        let all = pattern(300_000).to_vec();
        files.write("/file", &all).await;
        for (offset, length) in [
            (0, 0),
            (0, 1),
            (17, 5),
            (65_530, 12),
            (299_990, 100),
            (300_000, 10),
            (400_000, 10),
            (100, u64::MAX),
            (0, 300_000),
        ] {
            let reader = world
                .runtime
                .read_range(id, &user(), b"/file", offset, length)
                .await;
            let reader = reader.unwrap();
            assert_eq!(reader.entry.size, 300_000);
            let begin = usize::try_from(offset).unwrap().min(all.len());
            let end = begin + usize::try_from(length.min(300_000)).unwrap();
            let part = &all[begin..end.min(all.len())];
            let read = reader.read_to_end(1 << 20).await.unwrap();
            assert!(read == part, "{offset} {length}: {} bytes", read.len());
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_over_the_limit_is_refused() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        files.write("/file", "12345").await;
        let read = async |limit| {
            let reader = world
                .runtime
                .read_file(id, &user(), b"/file")
                .await
                .unwrap();
            reader.read_to_end(limit).await
        };
        assert_eq!(read(5).await.unwrap(), b"12345");
        assert_eq!(code(read(4).await), Code::QuotaExceeded);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_files_report_the_reason() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        files.write("/secret", "x").await;
        world
            .runtime
            .chmod(id, &RunAs::root(), b"/secret", 0o600)
            .await
            .unwrap();
        stdout_text(&world.probe(id, "root", &["fifo", "/fifo"]).await);
        files.link("/nowhere", "/dangling").await;
        for (path, expected) in [
            ("/missing", Code::FileNotFound),
            ("/dangling", Code::FileNotFound),
            ("/secret", Code::PermissionDenied),
            ("/home", Code::NotAFile),
            ("/fifo", Code::NotAFile),
            ("/dev/zero", Code::NotAFile),
            ("/secret/below", Code::NotADirectory),
        ] {
            let error = files.try_read(&user(), path).await.unwrap_err();
            assert_eq!(error.code, expected, "{path}: {error:?}");
            assert_eq!(error.details["path"], path);
        }
        assert_eq!(files.try_read(&owner(), "/secret").await.unwrap(), b"x");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_the_kernel_are_read_to_their_end() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        assert!(files.text("/proc/meminfo").await.starts_with("MemTotal:"));
        assert!(files.text("/proc/self/status").await.contains("Pid:"));
        assert!(
            !files
                .text("/sys/devices/system/cpu/online")
                .await
                .is_empty()
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_calls_and_commands_see_the_same_files() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        stdout_text(
            &world
                .probe(id, "user", &["write", "/home/user/in", "from inside"])
                .await,
        );
        assert_eq!(files.text("/home/user/in").await, "from inside");
        files.write("/out", "from outside").await;
        assert_eq!(
            stdout_text(&world.probe(id, "user", &["read", "/out"]).await),
            "from outside"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stat_describes_a_path() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap();
        let options = super::WriteOptions {
            mode: Some(0o640),
            ..super::REPLACE
        };
        files
            .try_write(&user(), "~/file", "12345", options)
            .await
            .unwrap();
        files.link("/home/user/file", "/link").await;
        files.link("/nowhere", "/dangling").await;
        let file = files.stat("/home/user/file").await;
        assert_eq!(
            (file.kind, file.mode, file.size),
            (FileKind::File, 0o640, 5)
        );
        assert_eq!((file.uid, file.gid, file.link), (1000, 1000, None));
        let modified = Duration::from_nanos(file.modified.try_into().unwrap());
        assert!(
            modified.abs_diff(now) < Duration::from_mins(2),
            "{modified:?} {now:?}"
        );
        let directory = files.stat("/home/user").await;
        assert_eq!(
            (directory.kind, directory.mode),
            (FileKind::Directory, 0o755)
        );
        assert_eq!(files.stat("/dev/null").await.kind, FileKind::Other);

        let link = files.stat("/link").await;
        assert_eq!(
            (link.kind, link.link),
            (FileKind::Link, Some(b"/home/user/file".to_vec()))
        );
        let followed = world
            .runtime
            .stat(id, &user(), b"/link", true)
            .await
            .unwrap();
        assert_eq!(
            (followed.kind, followed.size, followed.link),
            (FileKind::File, 5, None)
        );
        assert_eq!(followed.path, b"/link");
        let dangling = world.runtime.stat(id, &user(), b"/dangling", true).await;
        assert_eq!(code(dangling), Code::FileNotFound);
        assert_eq!(files.stat("/dangling").await.kind, FileKind::Link);
    })
    .await;
}

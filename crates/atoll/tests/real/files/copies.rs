//! Copying within a sandbox.

use atoll_model::{Code, Error, FileKind, RunAs};
use atoll_testkit::pattern;

use super::{Files, code, owner, user};
use crate::harness::{in_both, stdout_text};

async fn copy(files: &Files<'_>, from: &str, to: &str, replace: bool) -> Result<(), Error> {
    copy_as(files, &RunAs::root(), from, to, replace).await
}

async fn copy_as(
    files: &Files<'_>,
    caller: &RunAs,
    from: &str,
    to: &str,
    replace: bool,
) -> Result<(), Error> {
    let (from, to) = (from.as_bytes(), to.as_bytes());
    files
        .world
        .runtime
        .copy(files.id, caller, from, to, replace)
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_copied_with_its_mode() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        let bytes = pattern(3_000_000).to_vec();
        files.write("/from", &bytes).await;
        world
            .runtime
            .chmod(id, &RunAs::root(), b"/from", 0o754)
            .await
            .unwrap();
        copy(&files, "/from", "/to", false).await.unwrap();
        assert!(files.read("/to").await == bytes);
        assert_eq!(files.stat("/to").await.mode, 0o754);
        copy_as(&files, &user(), "/from", "own", false)
            .await
            .unwrap();
        let entry = files.stat("/home/user/own").await;
        assert_eq!((entry.uid, entry.mode), (1000, 0o754));
        copy_as(&files, &owner(), "/from", "/given", false)
            .await
            .unwrap();
        assert_eq!(files.stat("/given").await.uid, 1000);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_replaces_an_existing_target_only_with_replace() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        files.write("/from", "new").await;
        files.write("/to", "something older").await;
        assert_eq!(
            code(copy(&files, "/from", "/to", false).await),
            Code::FileExists
        );
        assert_eq!(files.text("/to").await, "something older");
        copy(&files, "/from", "/to", true).await.unwrap();
        assert_eq!(files.text("/to").await, "new");
        files.mkdir("/dir").await;
        assert_eq!(
            code(copy(&files, "/from", "/dir", true).await),
            Code::NotAFile
        );
        assert_eq!(
            code(copy(&files, "/from", "/no/such", true).await),
            Code::FileNotFound
        );
        assert_eq!(
            code(copy(&files, "/missing", "/to", true).await),
            Code::FileNotFound
        );
        assert_eq!(
            code(copy_as(&files, &user(), "/from", "/denied", true).await),
            Code::PermissionDenied
        );
        stdout_text(&world.probe(id, "root", &["fifo", "/fifo"]).await);
        assert_eq!(
            code(copy(&files, "/fifo", "/x", true).await),
            Code::NotAFile
        );
        assert_eq!(
            code(copy(&files, "/from", "/fifo", true).await),
            Code::NotAFile
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directory_is_copied_recursively() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        files.mkdir("/from/a/b").await;
        files.write("/from/a/file", "1").await;
        files.write("/from/a/b/deep", "2").await;
        files.link("a/file", "/from/link").await;
        files.link("/nowhere", "/from/dangling").await;
        stdout_text(&world.probe(id, "root", &["fifo", "/from/fifo"]).await);
        world
            .runtime
            .chmod(id, &RunAs::root(), b"/from/a", 0o711)
            .await
            .unwrap();
        copy(&files, "/from", "/to", false).await.unwrap();
        assert_eq!(files.names("/to").await, ["a", "dangling", "link"]);
        assert_eq!(files.text("/to/a/b/deep").await, "2");
        assert_eq!(files.stat("/to/a").await.mode, 0o711);
        let link = files.stat("/to/link").await;
        assert_eq!(
            (link.kind, link.link),
            (FileKind::Link, Some(b"a/file".to_vec()))
        );
        assert_eq!(
            code(copy(&files, "/from", "/to", false).await),
            Code::FileExists
        );
        // A copy to an existing directory goes into it and replaces entries of the same name.
        files.write("/to/a/file", "changed").await;
        files.write("/to/other", "stays").await;
        copy(&files, "/from", "/to", true).await.unwrap();
        assert_eq!(files.text("/to/a/file").await, "1");
        assert_eq!(files.text("/to/other").await, "stays");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_may_not_be_written_is_copied_too() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        files.mkdir("/from/below").await;
        files.write("/from/below/file", "x").await;
        for path in ["/from/below", "/from"] {
            world
                .runtime
                .chmod(id, &RunAs::root(), path.as_bytes(), 0o555)
                .await
                .unwrap();
        }
        copy_as(&files, &user(), "/from", "copy", false)
            .await
            .unwrap();
        assert_eq!(files.text("/home/user/copy/below/file").await, "x");
        assert_eq!(files.stat("/home/user/copy").await.mode, 0o555);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_not_copied_into_itself() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        files.mkdir("/dir/below").await;
        files.write("/dir/file", "x").await;
        files.link("/dir", "/alias").await;
        for to in [
            "/dir/copy",
            "/dir/below/copy",
            "/alias/copy",
            "/dir/../dir/copy",
        ] {
            assert_eq!(
                code(copy(&files, "/dir", to, true).await),
                Code::InvalidRequest,
                "{to}"
            );
        }
        assert_eq!(files.names("/dir").await, ["below", "file"]);
        copy(&files, "/dir", "/dir-copy", false).await.unwrap();
        assert_eq!(files.names("/dir-copy").await, ["below", "file"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_onto_itself_destroys_nothing() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        files.mkdir("/dir").await;
        files.write("/dir/file", "precious").await;
        files.link("/dir/file", "/link").await;
        files.link("/dir", "/alias").await;
        stdout_text(
            &world
                .probe(id, "root", &["hardlink", "/dir/file", "/twin"])
                .await,
        );
        for (from, to) in [
            ("/dir/file", "/dir/file"),
            ("/dir/file", "/dir/../dir/file"),
            ("/dir/file", "/link"),
            ("/dir/file", "/twin"),
            ("/dir", "/dir"),
            ("/dir", "/alias"),
            ("/link", "/link"),
            ("/link", "/dir/file"),
        ] {
            let copied = copy(&files, from, to, true).await;
            assert_eq!(files.text("/dir/file").await, "precious", "{from} {to}");
            assert_eq!(code(copied), Code::InvalidRequest, "{from} {to}");
        }
        assert_eq!(files.stat("/link").await.kind, FileKind::Link);
    })
    .await;
}

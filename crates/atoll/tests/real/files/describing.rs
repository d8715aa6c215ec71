//! File metadata: names of owners, link targets, attributes.

use std::collections::BTreeMap;

use atoll_model::{Attributes, Code, Error, FileDetails, FileKind, RunAs, WatchOptions};

use super::{Files, code, owner, user};
use crate::harness::{in_both, stdout_text};

const PREFIX: &str = "user.test.";

async fn described(files: &Files<'_>, path: &str) -> Result<FileDetails, Error> {
    let (runtime, owner) = (&files.world.runtime, owner());
    let described = runtime.describe(files.id, &owner, path.as_bytes(), PREFIX);
    described.await
}

async fn below(files: &Files<'_>, path: &str, depth: u32, limit: u32) -> (Vec<String>, bool) {
    let query = (path.as_bytes(), depth, limit);
    let (runtime, owner) = (&files.world.runtime, owner());
    let found = runtime.describe_tree(files.id, &owner, query, PREFIX);
    let (all, more) = found.await.unwrap();
    let name = |it: FileDetails| String::from_utf8(it.entry.path).unwrap();
    (all.into_iter().map(name).collect(), more)
}

fn attributes(values: &[(&str, &str)]) -> Attributes {
    let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Attributes {
        prefix: PREFIX.into(),
        values: values.iter().map(text).collect(),
    }
}

/// Puts text into a file, with attributes.
async fn put(
    files: &Files<'_>,
    caller: &RunAs,
    path: &str,
    text: &str,
    attributes: Attributes,
) -> Result<(), Error> {
    let runtime = &files.world.runtime;
    let writer = runtime.write_file_with_attributes(files.id, caller, path.as_bytes(), attributes);
    let mut writer = writer.await?;
    writer.write(text.as_bytes()).await?;
    writer.commit().await.map(|_| ())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_have_names_where_the_sandbox_knows_them() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        files.write("/roots", "x").await;
        let found = described(&files, "/roots").await.unwrap();
        assert_eq!(
            (found.owner.as_str(), found.group.as_str()),
            ("root", "root")
        );
        put(&files, &owner(), "mine", "x", Attributes::default())
            .await
            .unwrap();
        let found = described(&files, "mine").await.unwrap();
        assert_eq!(found.entry.path, b"/home/user/mine");
        assert_eq!(
            (found.owner.as_str(), found.group.as_str()),
            ("user", "user")
        );
        let root = RunAs::root();
        let given = world.runtime.chown(id, &root, b"/roots", "4711", "4712");
        given.await.unwrap();
        let found = described(&files, "/roots").await.unwrap();
        assert_eq!(
            (found.owner.as_str(), found.group.as_str()),
            ("4711", "4712")
        );
        assert_eq!(
            code(described(&files, "/missing").await),
            Code::FileNotFound
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_report_their_final_target() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        files.write("/file", "12345").await;
        files.mkdir("/dir").await;
        files.link("../file", "/dir/one").await;
        files.link("dir/one", "/two").await;
        files.link("dir", "/three").await;
        files.link("nothing", "/broken").await;
        let two = described(&files, "/two").await.unwrap();
        assert_eq!(two.entry.kind, FileKind::Link);
        let target = two.target.unwrap();
        assert_eq!(
            (target.path.as_slice(), target.kind),
            (&b"/file"[..], FileKind::File)
        );
        let three = described(&files, "/three").await.unwrap().target.unwrap();
        assert_eq!(three.kind, FileKind::Directory);
        assert_eq!(described(&files, "/broken").await.unwrap().target, None);
        assert_eq!(described(&files, "/file").await.unwrap().target, None);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trees_are_described_depth_first_and_in_order() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        for path in ["/t/b/2", "/t/b/1", "/t/a/x/deep"] {
            files.mkdir(path).await;
        }
        files.write("/t/a.txt", "x").await;
        files.link("a", "/t/link").await;
        let all = [
            "/t/a",
            "/t/a/x",
            "/t/a/x/deep",
            "/t/a.txt",
            "/t/b",
            "/t/b/1",
            "/t/b/2",
            "/t/link",
        ];
        let all = all.map(ToOwned::to_owned);
        assert_eq!(below(&files, "/t", 9, 100).await, (all.to_vec(), false));
        assert_eq!(below(&files, "/t", 9, 3).await, (all[..3].to_vec(), true));
        let top: Vec<String> = ["/t/a", "/t/a.txt", "/t/b", "/t/link"]
            .map(Into::into)
            .into();
        assert_eq!(below(&files, "/t", 1, 100).await, (top, false));
        // Its path is the requested one, although that is a link.
        assert_eq!(below(&files, "/t/link", 1, 9).await.0, ["/t/link/x"]);
        let query = (&b"/t/a.txt"[..], 1, 9);
        let refused = world
            .runtime
            .describe_tree(id, &owner(), query, PREFIX)
            .await;
        assert_eq!(code(refused), Code::NotADirectory);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upload_keeps_the_inode_and_belongs_to_the_user() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        files.write("/there", "something longer").await;
        files.link("there", "/link").await;
        let none = Attributes::default;
        put(&files, &owner(), "/link", "short", none())
            .await
            .unwrap();
        assert_eq!(files.text("/there").await, "short");
        assert_eq!(files.stat("/there").await.uid, 1000);
        assert_eq!(files.stat("/link").await.kind, FileKind::Link);
        // Created parent directories belong to the user too.
        put(&files, &owner(), "/new/dir/file", "x", none())
            .await
            .unwrap();
        let above = files.stat("/new/dir").await;
        assert_eq!((above.uid, above.mode), (1000, 0o755));
        // With the rights of the user, the owner cannot be changed.
        assert_eq!(
            code(put(&files, &user(), "/denied", "x", none()).await),
            Code::PermissionDenied
        );
        stdout_text(&world.probe(id, "root", &["fifo", "/fifo"]).await);
        for path in ["/new", "/fifo"] {
            assert_eq!(
                code(put(&files, &owner(), path, "x", none()).await),
                Code::NotAFile,
                "{path}"
            );
        }
        // After an aborted write, the new file does not exist.
        let mut writer = world
            .runtime
            .write_file_with_attributes(id, &owner(), b"/half", none())
            .await
            .unwrap();
        writer.write(b"half").await.unwrap();
        drop(writer);
        while files.exists("/half").await {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_are_replaced_as_a_set() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        let given = |values: &[(&str, &str)]| attributes(values);
        let map =
            |values: &[(&str, &str)]| -> BTreeMap<String, String> { attributes(values).values };
        let first = [("a", "1"), ("b", "with space")];
        put(&files, &owner(), "/said", "x", given(&first))
            .await
            .unwrap();
        assert_eq!(
            described(&files, "/said").await.unwrap().attributes,
            map(&first)
        );
        // Attributes with another prefix do not change.
        let other = Attributes {
            prefix: "user.other.".into(),
            ..attributes(&[("c", "3")])
        };
        put(&files, &owner(), "/said", "x", other).await.unwrap();
        assert_eq!(
            described(&files, "/said").await.unwrap().attributes,
            map(&first)
        );
        let second = [("b", "2"), ("d", "")];
        put(&files, &owner(), "/said", "x", given(&second))
            .await
            .unwrap();
        assert_eq!(
            described(&files, "/said").await.unwrap().attributes,
            map(&second)
        );
        put(&files, &owner(), "/said", "x", given(&[]))
            .await
            .unwrap();
        assert_eq!(
            described(&files, "/said").await.unwrap().attributes,
            map(&[])
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_reports_chown_of_a_new_file_before_its_write() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        files.mkdir("/w").await;
        let (owner, options) = (owner(), WatchOptions::default());
        let watch = world.runtime.watch(id, &owner, b"/w", options);
        let mut watch = watch.await.unwrap();
        put(&files, &owner, "/w/new", "x", Attributes::default())
            .await
            .unwrap();
        use atoll_model::WatchEvent::{Chmod, Create, Write};
        let path = || b"new".to_vec();
        let create = Create {
            path: path(),
            directory: false,
        };
        let expected = [create, Chmod { path: path() }, Write { path: path() }];
        assert_eq!(watch.drain().await.unwrap(), expected);
    })
    .await;
}

//! Listing of directories: order, depth, limits, and links that are not followed.

use atoll_model::{Code, FileKind, RunAs};

use super::{Files, code, user};
use crate::harness::in_both;

/// Creates a small tree as root.
async fn grow(files: &Files<'_>) {
    files.mkdir("/tree/b/deep/deeper").await;
    files.mkdir("/tree/a").await;
    files.write("/tree/c", "123").await;
    files.write("/tree/a/one", "1").await;
    files.write("/tree/b/two", "22").await;
    files.write("/tree/b/deep/deeper/three", "333").await;
    files.link("/tree/b", "/tree/link").await;
    files.link("../tree", "/tree/a/loop").await;
}

/// Entries of a listing as text.
async fn listed(files: &Files<'_>, depth: u32, limit: u32) -> (Vec<String>, bool) {
    let list = files
        .world
        .runtime
        .list_files(files.id, &user(), b"/tree", depth, limit)
        .await;
    let (entries, truncated) = list.unwrap();
    let name = |path: Vec<u8>| String::from_utf8(path).unwrap();
    (
        entries.into_iter().map(|entry| name(entry.path)).collect(),
        truncated,
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_listed_in_order() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        grow(&files).await;
        let list = world
            .runtime
            .list_files(id, &user(), b"/tree", 1, 100)
            .await;
        let (entries, truncated) = list.unwrap();
        assert!(!truncated);
        let seen: Vec<_> = entries
            .iter()
            .map(|entry| (&entry.path[..], entry.kind))
            .collect();
        let expected = [
            (&b"a"[..], FileKind::Directory),
            (b"b", FileKind::Directory),
            (b"c", FileKind::File),
            (b"link", FileKind::Link),
        ];
        assert_eq!(seen, expected);
        assert_eq!(
            (entries[2].size, entries[2].mode, entries[2].uid),
            (3, 0o644, 0)
        );
        assert_eq!(entries[3].link.as_deref(), Some(&b"/tree/b"[..]));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn depth_limits_the_listing_and_links_are_not_followed() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        grow(&files).await;
        let (names, _) = listed(&files, 2, 100).await;
        let mut expected = vec!["a", "b", "c", "link", "a/loop", "a/one", "b/deep", "b/two"];
        assert_eq!(names, expected);
        expected.extend(["b/deep/deeper", "b/deep/deeper/three"]);
        let (names, truncated) = listed(&files, u32::MAX, 100).await;
        assert_eq!(
            (names, truncated),
            (expected.iter().map(|&name| name.into()).collect(), false)
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limit_truncates_the_listing_and_reports_truncation() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        grow(&files).await;
        let (all, _) = listed(&files, 9, 100).await;
        for limit in 0..=all.len() + 1 {
            let (names, truncated) = listed(&files, 9, u32::try_from(limit).unwrap()).await;
            assert_eq!(names, all[..limit.min(all.len())]);
            assert_eq!(truncated, limit < all.len(), "{limit}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_names_than_fit_one_message_are_listed() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        files.mkdir("/many").await;
        // Long names: many packets.
        let place = world.runtime.clone();
        let mut writes = tokio::task::JoinSet::new();
        for number in 0..40 {
            let (runtime, id) = (place.clone(), id.clone());
            writes.spawn(async move {
                for below in 0..25 {
                    let path = format!("/many/{number:02}-{below:02}-{}", "n".repeat(200));
                    let root = RunAs::root();
                    let made = runtime.make_directory(&id, &root, path.as_bytes(), 0o755, false);
                    made.await.unwrap();
                }
            });
        }
        writes.join_all().await;
        drop(place);
        let names = files.names("/many").await;
        assert_eq!(names.len(), 1000);
        assert!(names.is_sorted());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listing_a_file_is_refused() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        grow(&files).await;
        let list = async |path: &str| {
            world
                .runtime
                .list_files(id, &user(), path.as_bytes(), 1, 9)
                .await
        };
        assert_eq!(code(list("/missing").await), Code::FileNotFound);
        assert_eq!(code(list("/tree/c").await), Code::NotADirectory);
        // The directory itself may be reached through a link.
        let (entries, _) = list("/tree/link").await.unwrap();
        assert_eq!(entries.len(), 2);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_directories_are_listed_and_not_entered() {
    in_both(async |world, id| {
        let files = Files::of(world, id);
        grow(&files).await;
        world
            .runtime
            .chmod(id, &RunAs::root(), b"/tree/b", 0o700)
            .await
            .unwrap();
        let (names, truncated) = listed(&files, 9, 100).await;
        assert_eq!(names, ["a", "b", "c", "link", "a/loop", "a/one"]);
        assert!(!truncated);
        let closed = world
            .runtime
            .list_files(id, &user(), b"/tree/b", 1, 9)
            .await;
        assert_eq!(code(closed), Code::PermissionDenied);
    })
    .await;
}

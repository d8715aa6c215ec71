//! A sandbox keeps the layer it was created from, also when its template is replaced or its server restarts.

use std::process::Command;

use atoll_model::{Code, SandboxId};
use atoll_testkit::{static_layer, wait_for};
use atoll_worker::LocalRuntime;
use atoll_worker::template::{Source, TemplateOptions, TemplateStore};

use super::{Place, TEMPLATE, kill, serve, spec};
use crate::harness::{DEADLINE, binary, probe_spec};

/// Rebuilds the template with a file that contains its version.
fn rebuild(place: &Place, which: &str) {
    let layer = place.file(&format!("layer-{which}"));
    static_layer(&layer);
    std::fs::write(layer.join("which"), which).unwrap();
    let options = TemplateOptions {
        replace: true,
        ..TemplateOptions::default()
    };
    let source = Source::Directory(layer);
    store(place)
        .add(TEMPLATE, &source, &options, &mut |_| {})
        .unwrap();
}

fn store(place: &Place) -> TemplateStore {
    TemplateStore::open(place.data().join("templates")).unwrap()
}

/// Reads a file that is not in the page cache, so that the data comes from the layer itself.
async fn which(runtime: &LocalRuntime, id: &SandboxId) -> String {
    let exec = runtime.exec(id, probe_spec(&["read", "/which"])).await;
    let done = exec.unwrap().finish(b"", 100).await.unwrap();
    assert!(done.status.success(), "{done:?}");
    String::from_utf8(done.stdout).unwrap()
}

fn atoll(place: &Place, words: &[&str]) -> (bool, String) {
    let mut command = Command::new(binary());
    let command = command.args(words).env("ATOLL_DATA_DIR", place.data());
    let done = command.output().unwrap();
    let output = [done.stdout, done.stderr].concat();
    (
        done.status.success(),
        String::from_utf8_lossy(&output).into_owned(),
    )
}

/// Number of layers in the store.
fn layers(place: &Place) -> usize {
    let all = std::fs::read_dir(place.data().join("templates")).unwrap();
    all.flatten()
        .filter(|entry| entry.path().join("layer").exists())
        .count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layer_that_was_replaced_outlives_a_kill_and_gc() {
    let place = Place::new();
    rebuild(&place, "old");
    let file = place.file("made");
    let words = [("COUNT", "1"), ("FILE", file.to_str().unwrap())];
    let mut server = serve("make", &place, &words);
    wait_for("the sandbox", DEADLINE, || file.exists());
    rebuild(&place, "new");
    kill(&mut server);
    let (done, output) = atoll(&place, &["gc"]);
    assert!(done && output.contains("0 old templates"), "{output}");
    assert_eq!(layers(&place), 2);
    // Also for a second server, while it runs.
    for _ in 0..2 {
        let runtime = place.open().await;
        let id = runtime.list()[0].id.clone();
        assert_eq!(which(&runtime, &id).await, "old");
        assert!(atoll(&place, &["gc"]).1.contains("0 old templates"));
        runtime.close().await.unwrap();
        assert!(atoll(&place, &["gc"]).1.contains("0 old templates"));
    }
    let (_, output) = atoll(&place, &["template", "ls"]);
    assert!(
        output.contains("an older one stays for 1 sandbox"),
        "{output}"
    );
    let runtime = place.open().await;
    let new = runtime.create(spec()).await.unwrap().id;
    assert_eq!(which(&runtime, &new).await, "new");
    for info in runtime.list() {
        runtime.delete(&info.id).await.unwrap();
    }
    assert!(atoll(&place, &["gc"]).1.contains("1 old template,") || layers(&place) == 1);
    assert_eq!(layers(&place), 1);
    place.close(runtime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn template_replaced_while_down_stays_for_its_sandboxes() {
    let place = Place::new();
    rebuild(&place, "old");
    let file = place.file("made");
    let words = [("COUNT", "2"), ("FILE", file.to_str().unwrap())];
    let mut server = serve("make", &place, &words);
    wait_for("the sandboxes", DEADLINE, || file.exists());
    kill(&mut server);
    rebuild(&place, "new");
    let runtime = place.open().await;
    for info in runtime.list() {
        assert_eq!(which(&runtime, &info.id).await, "old");
    }
    place.close(runtime).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_sandbox_starts_on_the_layer_it_was_made_from() {
    let place = Place::new();
    rebuild(&place, "old");
    let runtime = place.open().await;
    let id = runtime.create(spec()).await.unwrap().id;
    runtime.stop(&id).await.unwrap();
    // Nor does a server run it: only its record exists.
    runtime.close().await.unwrap();
    let (removed, output) = atoll(&place, &["template", "rm", TEMPLATE]);
    assert!(!removed && output.contains(id.as_str()), "{output}");
    rebuild(&place, "new");
    rebuild(&place, "newer");
    assert!(atoll(&place, &["gc"]).1.contains("0 old templates"));
    assert_eq!(layers(&place), 2, "no sandbox uses the layer between");
    let runtime = place.open().await;
    runtime.start(&id).await.unwrap();
    assert_eq!(which(&runtime, &id).await, "old");
    runtime.delete(&id).await.unwrap();
    let (removed, output) = atoll(&place, &["template", "rm", TEMPLATE]);
    assert!(removed, "{output}");
    let error = runtime.create(spec()).await.unwrap_err();
    assert_eq!(error.code, Code::UnknownTemplate);
    assert_eq!(store(&place).sweep().unwrap(), 1);
    place.close(runtime).await;
}

/// Data of an earlier version: templates and records without an id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn templates_and_sandboxes_without_layer_ids_still_work() {
    let place = Place::new();
    rebuild(&place, "old");
    let described = place.data().join("templates/one/template.json");
    let runtime = place.open().await;
    let [stopped, runs] = [0, 1].map(|_| runtime.create(spec()));
    let (stopped, runs) = (stopped.await.unwrap().id, runs.await.unwrap().id);
    runtime.stop(&stopped).await.unwrap();
    runtime.close().await.unwrap();
    let without = |path: &std::path::Path, key: &str| {
        let mut value: serde_json::Value =
            serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert!(value.as_object_mut().unwrap().remove(key).is_some());
        std::fs::write(path, value.to_string()).unwrap();
    };
    without(&described, "id");
    for id in [&stopped, &runs] {
        let record = place.data().join("sandboxes").join(id.as_str());
        without(&record.join("record.json"), "layer");
    }
    let (removed, output) = atoll(&place, &["template", "rm", TEMPLATE]);
    assert!(!removed, "{output}");
    let runtime = place.open().await;
    assert_eq!(which(&runtime, &runs).await, "old");
    runtime.start(&stopped).await.unwrap();
    assert_eq!(which(&runtime, &stopped).await, "old");
    // From now on the records have a layer id.
    rebuild(&place, "new");
    for id in [&stopped, &runs] {
        runtime.stop(id).await.unwrap();
        runtime.start(id).await.unwrap();
        assert_eq!(which(&runtime, id).await, "old");
    }
    place.close(runtime).await;
}

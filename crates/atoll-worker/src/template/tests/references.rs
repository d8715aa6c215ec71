//! References to layers from sandboxes of other data directories.

use super::*;

/// Writes the record of a sandbox to a data directory.
fn record(data: &Path, sandbox: &str, template: &Template) -> PathBuf {
    let directory = data.join("sandboxes").join(sandbox);
    fs::create_dir_all(&directory).unwrap();
    let record = serde_json::json!({
        "spec": { "template": template.name },
        "layer": template.meta.id,
    });
    let path = directory.join("record.json");
    fs::write(&path, record.to_string()).unwrap();
    path
}

fn replaced() -> TemplateOptions {
    TemplateOptions {
        replace: true,
        ..TemplateOptions::default()
    }
}

#[test]
fn layer_is_kept_for_sandboxes_of_other_data_directories() {
    let fixture = Fixture::new();
    let data = fixture.path("elsewhere");
    fs::create_dir(&data).unwrap();
    fixture
        .add("one", &fixture.small("1"), &TemplateOptions::default())
        .unwrap();
    let record = record(&data, "i1", &fixture.store.get("one").unwrap());
    let old = fixture.store.get("one").unwrap().meta.id.unwrap();
    fixture.store.register_data_dir(&data).unwrap();
    fixture.store.register_data_dir(&data).unwrap();
    let error = fixture.store.remove("one").unwrap_err();
    assert!(
        matches!(&error, Error::InUse { sandboxes, .. } if *sandboxes == ["i1"]),
        "{error}"
    );
    fixture
        .add("one", &fixture.small("2"), &replaced())
        .unwrap();
    assert_eq!(fixture.store.sweep().unwrap(), 0);
    assert_eq!(fixture.store.replaced().unwrap(), [("one".to_owned(), 1)]);
    let leased = fixture.store.get_layer("one", Some(&old)).unwrap();
    assert!(leased.is_replaced());
    drop(leased);
    // A record that cannot be read counts as an error, not as absent.
    let contents = fs::read(&record).unwrap();
    fs::remove_file(&record).unwrap();
    fs::create_dir(&record).unwrap();
    assert!(matches!(fixture.store.sweep(), Err(Error::Io { .. })));
    fs::remove_dir(&record).unwrap();
    fs::write(&record, contents).unwrap();
    assert_eq!(fixture.store.sweep().unwrap(), 0);
    // Without the data directory its references are gone.
    fs::remove_dir_all(&data).unwrap();
    assert_eq!(fixture.store.sweep().unwrap(), 1);
    assert_eq!(fixture.entries(), ["one"]);
    assert!(matches!(
        fixture.store.get_layer("one", Some(&old)),
        Err(Error::LayerMissing { .. })
    ));
}

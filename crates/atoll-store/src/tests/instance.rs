//! Tests of the inspection of a database.

use std::collections::HashSet;
use std::fs;

use atoll_model::InstanceId;

use super::Backend;
use crate::database::Database;
use crate::{DatabaseFile, DatabaseUrl, Error, Identity, Store, inspect};

#[tokio::test]
async fn missing_and_empty_databases_are_distinguished() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("atoll.db");
    assert_eq!(inspect(&path).await.unwrap(), DatabaseFile::Missing);
    assert!(!path.exists());
    fs::write(&path, "").unwrap();
    assert_eq!(inspect(&path).await.unwrap(), DatabaseFile::Empty);
    fs::write(&path, vec![b'x'; 8192]).unwrap();
    let error = inspect(&path).await.unwrap_err();
    assert!(error.is_corrupt(), "{error:?}");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(inspect(&path).await, Err(Error::NotAFile)));
}

#[tokio::test]
async fn inspect_reads_the_instance_without_changes() {
    let backend = Backend::sqlite();
    let store = backend.open().await;
    let DatabaseUrl::Sqlite(path) = backend.url() else {
        unreachable!()
    };
    let unknown = DatabaseFile::Database(Identity::default());
    assert_eq!(inspect(&path).await.unwrap(), unknown);
    let (first, second) = (InstanceId::random(), InstanceId::random());
    assert_eq!(store.claim_instance(&first).await.unwrap(), first);
    assert_eq!(store.claim_instance(&second).await.unwrap(), first);
    let known = DatabaseFile::Database(Identity {
        instance: Some(first),
        clock: None,
        sandboxes: HashSet::new(),
    });
    // While it is only in the write-ahead log, and when it is in the file.
    assert_eq!(inspect(&path).await.unwrap(), known);
    store.close().await;
    let files = || {
        let entries = fs::read_dir(path.parent().unwrap()).unwrap().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
        names.sort();
        (names, fs::read(&path).unwrap())
    };
    let before = files();
    assert_eq!(inspect(&path).await.unwrap(), known);
    assert!(files() == before);
}

#[tokio::test]
async fn newer_or_foreign_database_is_rejected() {
    let backend = Backend::sqlite();
    let store = backend.open().await;
    let DatabaseUrl::Sqlite(path) = backend.url() else {
        unreachable!()
    };
    let Database::Sqlite(database) = &store.database else {
        unreachable!()
    };
    let later = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         VALUES (9999, 'later', 1, x'00', 0)";
    sqlx::query(later).execute(&database.write).await.unwrap();
    assert!(matches!(inspect(&path).await, Err(Error::Newer)));
    sqlx::query("DROP TABLE _sqlx_migrations")
        .execute(&database.write)
        .await
        .unwrap();
    let error = inspect(&path).await.unwrap_err();
    assert!(error.is_corrupt(), "{error:?}");
    store.close().await;
    assert!(Store::open(&path).await.is_err());
}

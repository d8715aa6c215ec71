//! Compares plain directories with an image, each on a new file system.

use std::time::Instant;

use atoll_model::{Error, SandboxSpec};
use atoll_worker::Storage;

use super::work::{REPOSITORY, Workspace, inside, on_host, sandbox};
use super::{Row, Samples, progress};
use crate::config::Config;

const SANDBOXES: u32 = 200;
const ROUNDS: usize = 9;

/// Measurements of one kind of storage.
struct Figures {
    /// Sandboxes created and deleted per second by one caller.
    sustained: f64,
    clone: Samples,
    write: Samples,
}

/// Measures both kinds of storage.
pub(super) async fn compare(config: &Config) -> Result<Vec<Row>, Error> {
    let plain = measure(config, Storage::Plain).await?;
    let image = measure(config, Storage::Image).await?;
    let seconds = |samples: &Samples| samples.percentile(50.0).as_secs_f64();
    let times = |figure: &str, plain: f64, image: f64| {
        Row::value(
            format!("{figure}: {plain:.2} s plain, {image:.2} s image"),
            format!("{:.2} of plain", plain / image),
        )
    };
    Ok(vec![
        Row::value(
            format!(
                "storage, create + delete: {:.0}/s plain, {:.0}/s image",
                plain.sustained, image.sustained
            ),
            format!("{:.2} of plain", image.sustained / plain.sustained),
        ),
        times(
            "storage, git clone",
            seconds(&plain.clone),
            seconds(&image.clone),
        ),
        times(
            "storage, 1 GB written",
            seconds(&plain.write),
            seconds(&image.write),
        ),
    ])
}

async fn measure(config: &Config, storage: Storage) -> Result<Figures, Error> {
    progress(&format!("storage {storage}"));
    let workspace = Workspace::on(config, &format!("storage-{storage}"), storage).await?;
    let runtime = workspace.runtime()?;
    let begin = Instant::now();
    for _ in 0..SANDBOXES {
        let created = runtime.create(SandboxSpec::default()).await?;
        runtime.delete(&created.id).await?;
    }
    let sustained = f64::from(SANDBOXES) / begin.elapsed().as_secs_f64();

    on_host(&workspace.directory, REPOSITORY)?;
    let id = sandbox(runtime, &workspace.directory.join("source")).await?;
    inside(runtime, &id, "git config --global --add safe.directory '*'").await?;
    let mut clone = Samples::default();
    for _ in 0..ROUNDS {
        inside(runtime, &id, "rm -rf ~/work").await?;
        let begin = Instant::now();
        inside(runtime, &id, "git clone -q file:///source ~/work").await?;
        clone.add(begin);
    }
    let mut write = Samples::default();
    for _ in 0..3 {
        on_host(&workspace.directory, "sync -f .")?;
        let begin = Instant::now();
        inside(runtime, &id, "head -c 1000000000 /dev/zero > ~/big").await?;
        write.add(begin);
        inside(runtime, &id, "rm ~/big").await?;
    }
    workspace.close().await?;
    Ok(Figures {
        sustained,
        clone,
        write,
    })
}

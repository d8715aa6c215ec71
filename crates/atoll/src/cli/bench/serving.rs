//! Figures of a runtime as `atoll serve` configures it: pools, bursts, pause, adoption, noisy neighbour.

mod commands;
mod lives;
mod many;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_model::{Code, Error, Network, SandboxId, SandboxSpec};
use atoll_worker::{Config as RuntimeConfig, LocalRuntime};

use super::latency::{exec, run_true};
use super::{Bench, Row};
use crate::config::Config;
use commands::{echo, neighbour, stream};
use lives::{burst, deletes, embryos, pauses, sustained, warm};
pub(super) use many::victim;
use many::{adoption, thousand};

/// Data directory of a benchmark; removed on drop.
pub(super) struct Data(PathBuf);

impl Data {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn new(config: &Config) -> Self {
        let name = format!("bench-serving-{}", std::process::id());
        Self(config.data.join(name))
    }

    fn without_pools(&self, config: &Config) -> RuntimeConfig {
        RuntimeConfig {
            warm_count: 0,
            embryo_count: 0,
            ..self.config(config)
        }
    }

    fn config(&self, config: &Config) -> RuntimeConfig {
        RuntimeConfig {
            templates: config.templates(),
            ..RuntimeConfig::serving(&self.0)
        }
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        let facts = atoll_jail::facts::Facts::read();
        let scope = atoll_worker::instance::Scope::Below(&self.0);
        // The keeper may still be exiting.
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline {
            match atoll_worker::instance::collect(scope, &facts) {
                Ok(collected) if collected.instances.is_empty() => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                _ => break,
            }
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Measures the selected rows.
pub(super) async fn measure(config: &Config, bench: &Bench) -> Result<Vec<Row>, Error> {
    let data = Data::new(config);
    let mut rows = Vec::new();
    let names = [
        "warm",
        "embryos",
        "burst",
        "exec",
        "sustained",
        "pause",
        "delete",
        "stream",
        "echo",
        "neighbour",
    ];
    if names.iter().any(|name| bench.wants(name)) {
        let runtime = LocalRuntime::open(data.config(config)).await?;
        let measured = measure_with_pools(&runtime, bench).await;
        for info in runtime.list() {
            runtime.delete(&info.id).await?;
        }
        runtime.close().await?;
        rows.extend(measured?);
    }
    if bench.wants("thousand") {
        rows.extend(thousand(&data, config).await?);
    }
    if bench.wants("adoption") {
        rows.push(adoption(&data, config).await?);
    }
    Ok(rows)
}

async fn measure_with_pools(runtime: &LocalRuntime, bench: &Bench) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    if bench.wants("warm") {
        rows.push(warm(runtime).await?);
    }
    if bench.wants("embryos") {
        rows.push(embryos(runtime).await?);
    }
    if bench.wants("burst") {
        rows.push(burst(runtime).await?);
    }
    if bench.wants("exec") {
        let row = exec(
            runtime,
            "exec that outlasts its server, durable log",
            (1.4, 4.0),
        );
        rows.push(row.await?);
    }
    if bench.wants("sustained") {
        rows.push(sustained(runtime, Network::None, 220.0).await?);
        rows.push(sustained(runtime, Network::Internet, 100.0).await?);
    }
    if bench.wants("pause") {
        rows.extend(pauses(runtime).await?);
    }
    if bench.wants("delete") {
        rows.extend(deletes(runtime).await?);
    }
    if bench.wants("stream") {
        rows.push(stream(runtime).await?);
    }
    if bench.wants("echo") {
        rows.push(echo(runtime).await?);
    }
    if bench.wants("neighbour") {
        rows.push(neighbour(runtime).await?);
    }
    Ok(rows)
}

/// Waits until the pools have this many warm sandboxes and embryos.
async fn wait_for_pools(runtime: &LocalRuntime, warm: usize, embryos: usize) -> Result<(), Error> {
    let begin = Instant::now();
    while runtime.pool_sizes().0 < warm || runtime.pool_sizes().1 < embryos {
        if begin.elapsed() > Duration::from_mins(1) {
            return Err(Error::new(Code::Timeout, "the pool did not fill"));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

async fn create(runtime: &LocalRuntime) -> Result<SandboxId, Error> {
    Ok(runtime.create(SandboxSpec::default()).await?.id)
}

async fn create_and_run(runtime: &LocalRuntime) -> Result<SandboxId, Error> {
    let id = create(runtime).await?;
    run_true(runtime, &id).await?;
    Ok(id)
}

/// The result of a task; a panic is an error.
pub(super) fn flatten_join<T>(
    done: Result<Result<T, Error>, tokio::task::JoinError>,
) -> Result<T, Error> {
    done.map_err(|error| Error::new(Code::Internal, error.to_string()))?
}

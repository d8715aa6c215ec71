//! What the sandbox has and uses, as a program in it is told.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use atoll_core::Doorstep;
use axum::routing::get;
use axum::{Extension, Json, Router};
use serde_json::{Value, json};

use crate::App;
use crate::e2b::refusal::Answer;

/// How long processors are looked at.
const MOMENT: Duration = Duration::from_millis(100);

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/envs", get(variables))
}

/// The variables of every command.
async fn variables(Extension(step): Extension<Doorstep>) -> Answer<Json<BTreeMap<String, String>>> {
    let used = step.enter().await?;
    Ok(Json(used.runtime().variables(used.id())?))
}

async fn metrics(Extension(step): Extension<Doorstep>) -> Answer<Json<Value>> {
    let used = step.enter().await?;
    let (runtime, id) = (used.runtime(), used.id());
    let (limits, before, begin) = (runtime.get(id)?.limits, runtime.usage(id)?, Instant::now());
    let disk = runtime.disk_usage(id).await?;
    tokio::time::sleep(MOMENT.saturating_sub(begin.elapsed())).await;
    let now = runtime.usage(id)?;
    let busy = now.cpu.saturating_sub(before.cpu).as_secs_f64() / begin.elapsed().as_secs_f64();
    let memory = limits.memory.0;
    Ok(Json(json!({
        "ts": jiff::Timestamp::now().as_second(),
        "cpu_count": limits.cpus.0.div_ceil(1000).max(1),
        "cpu_used_pct": (busy * 100.0 * 100.0).round() / 100.0,
        "mem_total": memory,
        "mem_used": now.memory.0,
        "mem_cache": 0,
        "mem_total_mib": memory >> 20,
        "mem_used_mib": now.memory.0 >> 20,
        "disk_used": disk.used.0,
        "disk_total": disk.limit.0,
    })))
}

//! `/metrics` and `/envs`: resource usage and environment variables of the sandbox.

use std::collections::BTreeMap;

use atoll_core::SandboxRef;
use atoll_model::{Code, Error};
use axum::routing::get;
use axum::{Extension, Json, Router};
use serde_json::{Value, json};

use crate::AppState;
use crate::e2b::error::E2bResult;

pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/envs", get(variables))
}

/// Environment variables of every command.
async fn variables(
    Extension(sandbox): Extension<SandboxRef>,
) -> E2bResult<Json<BTreeMap<String, String>>> {
    let access = sandbox.open().await?;
    Ok(Json(access.runtime().variables(access.id()).await?))
}

async fn metrics(Extension(sandbox): Extension<SandboxRef>) -> E2bResult<Json<Value>> {
    let access = sandbox.open().await?;
    let (runtime, id) = (access.runtime(), access.id());
    let disk = runtime.disk_usage(id).await?;
    let now = runtime.samples(id, i64::MIN, i64::MAX).await?.pop();
    let now = now.ok_or_else(|| Error::new(Code::Internal, "no metrics sample exists"))?;
    let memory = now.limits.memory.0;
    Ok(Json(json!({
        "ts": now.at / 1_000_000,
        "cpu_count": now.limits.cpus.0.div_ceil(1000).max(1),
        "cpu_used_pct": now.cpu_percent,
        "mem_total": memory,
        "mem_used": now.memory.0,
        "mem_cache": now.cache.0,
        "mem_total_mib": memory >> 20,
        "mem_used_mib": now.memory.0 >> 20,
        "disk_used": disk.used.0,
        "disk_total": disk.limit.0,
    })))
}

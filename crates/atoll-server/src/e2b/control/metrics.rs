//! Resource usage of sandboxes in E2B's form.

use std::collections::BTreeMap;

use atoll_model::{Code, Error, Sample};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{find, for_sandbox, id_of};
use crate::AppState;
use crate::api_types::Time;
use crate::e2b::error::{E2bAuth, E2bError, E2bResult};
use crate::e2b::lenient::LenientQuery;

/// Resource usage at one time; all numbers are required.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metric {
    timestamp: Time,
    timestamp_unix: i64,
    cpu_count: u32,
    cpu_used_pct: f64,
    mem_used: u64,
    mem_total: u64,
    mem_cache: u64,
    disk_used: u64,
    disk_total: u64,
}

impl From<Sample> for Metric {
    fn from(sample: Sample) -> Self {
        Self {
            timestamp: Time::new(sample.at),
            timestamp_unix: sample.at / 1_000_000,
            cpu_count: sample.limits.cpus.0.div_ceil(1000).max(1),
            cpu_used_pct: sample.cpu_percent,
            mem_used: sample.memory.0,
            mem_total: sample.limits.memory.0,
            mem_cache: sample.cache.0,
            // A new sandbox has no measurement yet.
            disk_used: sample.disk.map_or(0, |disk| disk.0),
            disk_total: sample.limits.disk.0,
        }
    }
}

/// Unix times in seconds.
#[derive(Debug, Deserialize)]
pub(super) struct MetricsQuery {
    start: Option<i64>,
    end: Option<i64>,
}

pub(super) async fn metrics(
    State(app): State<AppState>,
    E2bAuth(caller): E2bAuth,
    Path(id): Path<String>,
    LenientQuery(query): LenientQuery<MetricsQuery>,
) -> E2bResult<Json<Vec<Metric>>> {
    let id = id_of(&id);
    find(&app, &caller, id).await?;
    let from = query.start.unwrap_or(i64::MIN).saturating_mul(1_000_000);
    // The end is inclusive, in whole seconds.
    let end = query.end.map(|end| end.saturating_add(1));
    let to = end.unwrap_or(i64::MAX).saturating_mul(1_000_000);
    let access = app
        .access
        .peek(&caller, id)
        .await
        .map_err(for_sandbox(id))?;
    let samples = access.runtime().samples(access.id(), from, to).await;
    let samples = samples.map_err(for_sandbox(id))?.into_iter();
    Ok(Json(samples.map(Metric::from).collect()))
}

#[derive(Debug, Deserialize)]
pub(super) struct LatestMetricsQuery {
    sandbox_ids: String,
}

/// Maximum number of sandboxes in a request.
const MAX_SANDBOXES: usize = 100;

/// Latest sample of each sandbox; unknown sandboxes are omitted.
pub(super) async fn latest(
    State(app): State<AppState>,
    E2bAuth(caller): E2bAuth,
    LenientQuery(query): LenientQuery<LatestMetricsQuery>,
) -> E2bResult<Json<Value>> {
    let ids: Vec<&str> = query.sandbox_ids.split(',').map(id_of).collect();
    if ids.len() > MAX_SANDBOXES {
        let message = format!("sandbox_ids: give {MAX_SANDBOXES} at most");
        return Err(E2bError::new(StatusCode::BAD_REQUEST, message));
    }
    let mut found = BTreeMap::new();
    for id in ids {
        let samples = async {
            let access = app.access.peek(&caller, id).await?;
            let samples = access.runtime().samples(access.id(), i64::MIN, i64::MAX);
            Ok::<_, Error>(samples.await?.pop())
        };
        match samples.await {
            Ok(Some(sample)) => found.insert(id, Metric::from(sample)),
            Ok(None) => None,
            Err(error) if error.code == Code::SandboxNotFound => None,
            Err(error) => return Err(error.into()),
        };
    }
    Ok(Json(json!({ "sandboxes": found })))
}

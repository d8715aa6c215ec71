//! Resource usage of sandboxes. Reading it does not count as activity.

use atoll_model::{Error, Sample};
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::AppState;
use crate::api_types::Time;
use crate::auth::Authenticated;
use crate::error::ApiResult;
use crate::extract::{Path, Query};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(metrics))
}

/// Resource usage of a sandbox at one time. Names are E2B's where E2B has one.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Sample)]
#[serde(rename_all = "camelCase")]
struct SampleView {
    timestamp: Time,
    /// Unix time in seconds.
    timestamp_unix: i64,
    cpu_count: f64,
    /// CPU usage since the previous sample; 100 is all CPUs of the sandbox.
    cpu_used_pct: f64,
    /// CPU time since the sandbox was started.
    cpu_seconds: f64,
    /// In bytes, without `memCache`.
    mem_used: u64,
    /// Page cache, in bytes.
    mem_cache: u64,
    /// Memory limit, in bytes.
    mem_total: u64,
    /// In bytes, at the last measurement.
    disk_used: Option<u64>,
    /// Disk limit, in bytes.
    disk_total: u64,
    /// Processes and threads.
    pids: u32,
}

impl From<Sample> for SampleView {
    fn from(sample: Sample) -> Self {
        Self {
            timestamp: Time::new(sample.at),
            timestamp_unix: sample.at / 1_000_000,
            cpu_count: f64::from(sample.limits.cpus.0) / 1000.0,
            cpu_used_pct: sample.cpu_percent,
            cpu_seconds: sample.cpu.as_secs_f64(),
            mem_used: sample.memory.0,
            mem_cache: sample.cache.0,
            mem_total: sample.limits.memory.0,
            disk_used: sample.disk.map(|disk| disk.0),
            disk_total: sample.limits.disk.0,
            pids: sample.pids,
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct MetricsQuery {
    /// Unix time in seconds, or RFC 3339.
    start: Option<String>,
    /// Unix time in seconds, or RFC 3339.
    end: Option<String>,
}

/// Parses Unix seconds or RFC 3339 into microseconds since 1970.
fn parse_time(field: &str, text: &str) -> Result<i64, Error> {
    let seconds = text.parse::<i64>().ok();
    let seconds = seconds.map(|seconds| seconds.saturating_mul(1_000_000));
    let written = || Some(text.parse::<jiff::Timestamp>().ok()?.as_microsecond());
    seconds.or_else(written).ok_or_else(|| {
        Error::invalid(
            field,
            format!("{text:?} is not a time"),
            "give seconds since 1970, or a time such as 2026-01-31T12:00:00Z",
        )
    })
}

/// Get metrics
///
/// Resource usage in the last hour, oldest first.
#[utoipa::path(get, path = "/sandboxes/{id}/metrics", params(MetricsQuery), responses((status = 200, body = [SampleView])))]
async fn metrics(
    State(app): State<AppState>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
    Query(query): Query<MetricsQuery>,
) -> ApiResult<Json<Vec<SampleView>>> {
    let bound =
        |field: &str, text: Option<String>| text.map(|text| parse_time(field, &text)).transpose();
    let from = bound("start", query.start)?.unwrap_or(i64::MIN);
    let to = bound("end", query.end)?.unwrap_or(i64::MAX);
    let access = app.access.peek(&caller, &id).await?;
    let samples = access.runtime().samples(access.id(), from, to).await?;
    Ok(Json(samples.into_iter().map(SampleView::from).collect()))
}

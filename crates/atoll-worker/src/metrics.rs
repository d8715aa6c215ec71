//! Prometheus metrics of the runtime and of the server process. No label comes from the contents of
//! a sandbox.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Duration;

use atoll_model::{OperationTimers, latency_histogram};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::LocalRuntime;
use crate::runtime::RuntimeState;

/// Metrics that are updated as events happen.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    pub(crate) operations: OperationTimers,
    /// From an exec's start to its end.
    execs: Histogram,
    commands: Gauge,
    terminals: Gauge,
    adopted: Gauge,
    adoption: Gauge<f64, AtomicU64>,
    /// Duration of one pass that samples the usage of all sandboxes.
    pub(crate) sampling: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            operations: OperationTimers::default(),
            execs: latency_histogram(),
            commands: Gauge::default(),
            terminals: Gauge::default(),
            adopted: Gauge::default(),
            adoption: Gauge::default(),
            sampling: latency_histogram(),
        }
    }
}

/// Counts one running command or open terminal until it is dropped.
#[derive(Debug)]
pub(crate) struct ActiveGauge(Gauge);

impl Drop for ActiveGauge {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    /// Counts a command or a terminal until the returned guard is dropped.
    pub(crate) fn track_active(&self, terminal: bool) -> ActiveGauge {
        let gauge = if terminal {
            &self.terminals
        } else {
            &self.commands
        };
        gauge.inc();
        ActiveGauge(gauge.clone())
    }

    /// Records the duration of an exec that ends now; `began` is in microseconds since 1970.
    pub(crate) fn observe_exec(&self, began: i64) {
        let took = crate::exec::now().saturating_sub(began).max(0);
        self.execs.observe(took as f64 / 1e6);
    }

    /// Records how many sandboxes were adopted at the start, and how long that took.
    pub(crate) fn record_adoption(&self, count: usize, took: Duration) {
        self.adopted.set(i64::try_from(count).unwrap_or(i64::MAX));
        self.adoption.set(took.as_secs_f64());
    }
}

impl LocalRuntime {
    /// Registers all metrics of the runtime.
    pub fn register(&self, registry: &mut Registry) {
        let metrics = &self.shared().metrics;
        metrics.operations.register(
            registry,
            "engine_op_duration",
            "Duration of a runtime operation",
        );
        let mut latency_histogram = |name: &str, help: &str, histogram: &Histogram| {
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        };
        latency_histogram(
            "exec_duration",
            "Duration of a command from start to end",
            &metrics.execs,
        );
        latency_histogram(
            "sampling_duration",
            "Duration of one pass that samples the usage of all sandboxes",
            &metrics.sampling,
        );
        let mut gauge = |name: &str, help: &str, gauge: &Gauge| {
            registry.register(name, help, gauge.clone());
        };
        gauge("execs_active", "Running commands", &metrics.commands);
        gauge("pty_sessions_active", "Open terminals", &metrics.terminals);
        gauge(
            "adopted_sandboxes",
            "Sandboxes of the previous server that this one adopted",
            &metrics.adopted,
        );
        registry.register_with_unit(
            "adoption",
            "Duration of the adoption at the start",
            Unit::Seconds,
            metrics.adoption.clone(),
        );
        let collector = HostCollector(Arc::downgrade(self.shared()));
        registry.register_collector(Box::new(collector));
    }
}

/// Metrics that are read when they are scraped.
struct HostCollector(Weak<RuntimeState>);

impl fmt::Debug for HostCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HostCollector").finish()
    }
}

impl Collector for HostCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(shared) = self.0.upgrade() else {
            return Ok(());
        };
        let (memory, threads, files) = process_stats();
        let all = [
            (
                "pool_warm",
                "Warm sandboxes in the pool",
                shared.warm_pool.len() as f64,
            ),
            (
                "pool_embryos",
                "Embryos in the pool",
                shared.embryo_pool.len() as f64,
            ),
            (
                "worker_utilization",
                "Fraction of this machine's memory that is in use, 0 to 1",
                utilization(&read("/proc/meminfo")),
            ),
            (
                "process_resident_memory_bytes",
                "Resident memory of the server process",
                memory,
            ),
            ("process_threads", "Threads of the server process", threads),
            (
                "process_open_fds",
                "Open file descriptors of the server process",
                files,
            ),
        ];
        for (name, help, value) in all {
            let gauge = ConstGauge::new(value);
            let kind = gauge.metric_type();
            gauge.encode(encoder.encode_descriptor(name, help, None, kind)?)?;
        }
        Ok(())
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The number after a name in a `/proc` file.
fn parse_field(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Resident memory in bytes, threads and open files of this process.
fn process_stats() -> (f64, f64, f64) {
    let status = read("/proc/self/status");
    let parse_field = |name| parse_field(&status, name).unwrap_or(0.0);
    let files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    (
        parse_field("VmRSS:") * 1024.0,
        parse_field("Threads:"),
        files as f64,
    )
}

/// Fraction of memory that is not available to programs, 0 to 1.
fn utilization(meminfo: &str) -> f64 {
    let parse_field = |name| parse_field(meminfo, name);
    match (parse_field("MemTotal:"), parse_field("MemAvailable:")) {
        (Some(total), Some(free)) if total > 0.0 => 1.0 - free / total,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utilization_is_the_unavailable_fraction() {
        let text = "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    250 kB\n";
        assert!((utilization(text) - 0.75).abs() < 1e-9);
        assert!(utilization("nonsense").abs() < 1e-9);
    }
}

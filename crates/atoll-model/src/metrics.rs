//! Latency histograms for Prometheus.
//!
//! This module reads the monotonic clock, and only for measuring: no decision depends on it.

use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Upper bounds of the buckets in seconds, with the finest steps around a few milliseconds.
const BOUNDS: [f64; 19] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.003, 0.005, 0.007_5, 0.01, 0.02, 0.05, 0.1, 0.25,
    0.5, 1.0, 2.5, 5.0, 10.0, 60.0,
];

/// Creates a histogram of durations in seconds.
pub fn latency_histogram() -> Histogram {
    Histogram::new(BOUNDS)
}

/// Latency histograms, one for each set of labels.
pub type LatencyFamily<L> = Family<L, Histogram, fn() -> Histogram>;

/// Creates an empty family of latency histograms.
pub fn latency_family<L: Clone + std::hash::Hash + Eq>() -> LatencyFamily<L> {
    Family::new_with_constructor(latency_histogram as fn() -> Histogram)
}

/// Label with the name of an operation in the source code. Never contains text from a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Operation {
    operation: &'static str,
}

/// Latency histograms of the operations of one component.
#[derive(Debug, Clone)]
pub struct OperationTimers(LatencyFamily<Operation>);

impl Default for OperationTimers {
    fn default() -> Self {
        Self(latency_family())
    }
}

impl OperationTimers {
    /// Starts a timer that records the duration when it is dropped.
    pub fn time(&self, operation: &'static str) -> Timer {
        Timer::start(self.0.get_or_create_owned(&Operation { operation }))
    }

    /// Registers the histograms.
    pub fn register(&self, registry: &mut Registry, name: &str, help: &str) {
        registry.register_with_unit(name, help, Unit::Seconds, self.0.clone());
    }
}

/// A running measurement. Records its duration when it is dropped.
#[derive(Debug)]
pub struct Timer {
    begin: Instant,
    into: Histogram,
}

impl Timer {
    /// Starts a measurement.
    pub fn start(into: Histogram) -> Self {
        let begin = Instant::now();
        Self { begin, into }
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.into.observe(self.elapsed().as_secs_f64());
    }
}

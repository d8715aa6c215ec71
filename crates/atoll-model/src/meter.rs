//! How long things take, counted for whoever watches. A stopwatch: nothing is ever decided by it.

use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Bounds of what is counted together, in seconds: fine around the milliseconds that most things take here.
const BOUNDS: [f64; 19] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.003, 0.005, 0.007_5, 0.01, 0.02, 0.05, 0.1, 0.25,
    0.5, 1.0, 2.5, 5.0, 10.0, 60.0,
];

/// Counts durations.
pub fn durations() -> Histogram {
    Histogram::new(BOUNDS)
}

/// Durations apart by labels.
pub type Durations<L> = Family<L, Histogram, fn() -> Histogram>;

/// None yet, of any label.
pub fn durations_by<L: Clone + std::hash::Hash + Eq>() -> Durations<L> {
    Family::new_with_constructor(durations as fn() -> Histogram)
}

/// What is done, by its name in our code: never a word of a caller's.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Operation {
    operation: &'static str,
}

/// How long operations of one part take.
#[derive(Debug, Clone)]
pub struct Operations(Durations<Operation>);

impl Default for Operations {
    fn default() -> Self {
        Self(durations_by())
    }
}

impl Operations {
    /// Measures until what comes back is dropped, however it ends.
    pub fn time(&self, operation: &'static str) -> Stopwatch {
        Stopwatch::start(self.0.get_or_create_owned(&Operation { operation }))
    }

    /// Shows them to whoever asks the registry.
    pub fn register(&self, registry: &mut Registry, name: &str, help: &str) {
        registry.register_with_unit(name, help, Unit::Seconds, self.0.clone());
    }
}

/// Something under way that is measured.
#[derive(Debug)]
pub struct Stopwatch {
    begin: Instant,
    into: Histogram,
}

impl Stopwatch {
    /// Measures from now on.
    pub fn start(into: Histogram) -> Self {
        let begin = Instant::now();
        Self { begin, into }
    }

    /// How long so far.
    pub fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        self.into.observe(self.elapsed().as_secs_f64());
    }
}

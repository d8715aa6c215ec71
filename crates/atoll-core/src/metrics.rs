//! Prometheus metrics of the control plane.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use atoll_model::{Error, LatencyFamily, SandboxState, latency_family, latency_histogram, lock};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::{Core, Inner};

/// Maximum number of template names as label values; later ones are reported as `other`. The names come from callers
/// and are never dropped.
const MAX_TEMPLATE_LABELS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TemplateLabel {
    template: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CreateLabels {
    template: String,
    status: &'static str,
}

/// Metrics that are updated by operations.
#[derive(Debug)]
pub(crate) struct Metrics {
    creates: Family<CreateLabels, Counter>,
    create_duration: LatencyFamily<TemplateLabel>,
    /// Time from the request to the reservation of a slot.
    queue_wait: Histogram,
    templates: Mutex<HashSet<String>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            creates: Family::default(),
            create_duration: latency_family(),
            queue_wait: latency_histogram(),
            templates: Mutex::default(),
        }
    }
}

impl Metrics {
    /// Records the result of a create.
    pub(crate) fn record_create<T>(
        &self,
        template: &str,
        result: &Result<T, Error>,
        duration: Duration,
    ) {
        let status = match result {
            Ok(_) => "success",
            Err(error) if error.code.status() < 500 => "refused",
            Err(_) => "failed",
        };
        let template = if result.is_ok() {
            let template = self.label(template);
            let of = TemplateLabel {
                template: template.clone(),
            };
            self.create_duration
                .get_or_create(&of)
                .observe(duration.as_secs_f64());
            template
        } else if self.lock_known_templates().contains(template) {
            template.to_owned()
        } else {
            // The name may be invented by the caller.
            "unknown".into()
        };
        self.creates
            .get_or_create(&CreateLabels { template, status })
            .inc();
    }

    /// Records the time that a create waited for a slot.
    pub(crate) fn record_queue_wait(&self, waited: Duration) {
        self.queue_wait.observe(waited.as_secs_f64());
    }

    fn lock_known_templates(&self) -> MutexGuard<'_, HashSet<String>> {
        lock(&self.templates)
    }

    /// Label value for an existing template.
    fn label(&self, template: &str) -> String {
        let mut known = self.lock_known_templates();
        if known.contains(template) || known.len() < MAX_TEMPLATE_LABELS {
            known.insert(template.to_owned());
            return template.to_owned();
        }
        "other".into()
    }
}

impl Core {
    /// Registers the metrics of the control plane, the store and the runtime.
    pub fn register(&self, registry: &mut Registry) {
        self.inner.store.register(registry);
        self.inner.runtime.register(registry);
        let metrics = &self.inner.metrics;
        registry.register(
            "sandbox_creates",
            "Create requests by result: success, refused or failed",
            metrics.creates.clone(),
        );
        registry.register_with_unit(
            "sandbox_create_duration",
            "Time to create a sandbox, until commands work",
            Unit::Seconds,
            metrics.create_duration.clone(),
        );
        registry.register_with_unit(
            "sandbox_create_queue",
            "Time that a create waited for a slot",
            Unit::Seconds,
            metrics.queue_wait.clone(),
        );
        registry.register_collector(Box::new(SandboxCollector(Arc::downgrade(&self.inner))));
    }
}

/// Metrics that are computed at each scrape.
struct SandboxCollector(Weak<Inner>);

impl fmt::Debug for SandboxCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SandboxCollector").finish()
    }
}

impl Collector for SandboxCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(inner) = self.0.upgrade() else {
            return Ok(());
        };
        let mut active = BTreeMap::<String, u32>::new();
        let mut states = SandboxState::ALL.map(|state| (state, 0_u32));
        for entry in inner.sandboxes.all() {
            let (state, template) = entry.read(|row| (row.state, row.template.clone()));
            if state == SandboxState::Running {
                *active.entry(inner.metrics.label(&template)).or_default() += 1;
            }
            for (_, count) in states.iter_mut().filter(|(known, _)| *known == state) {
                *count += 1;
            }
        }
        let help = "Number of running sandboxes by template";
        let mut all =
            encoder.encode_descriptor("sandboxes_active", help, None, MetricType::Gauge)?;
        for (template, count) in active {
            let labels = [("template", template)];
            ConstGauge::new(count).encode(all.encode_family(&labels)?)?;
        }
        let help = "Number of sandboxes by state";
        let mut all = encoder.encode_descriptor("sandboxes", help, None, MetricType::Gauge)?;
        for (state, count) in states {
            let labels = [("state", state.name())];
            ConstGauge::new(count).encode(all.encode_family(&labels)?)?;
        }
        let help = "Age of the oldest acknowledged change that a power failure could still undo";
        let unit = Some(&Unit::Seconds);
        let mut all = encoder.encode_descriptor("unsynced", help, unit, MetricType::Gauge)?;
        for (part, age) in [
            ("database", inner.store.oldest_unsynced()),
            ("sandboxes", inner.runtime.status().oldest_unsynced),
        ] {
            let labels = [("part", part)];
            ConstGauge::new(age.as_secs_f64()).encode(all.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

//! What whoever watches is told about sandboxes: how many there are, how many were made, how long that took.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use atoll_model::{Error, LatencyFamily, SandboxState, latency_family, latency_histogram};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::{Core, Inner};

/// So many templates are told apart; later ones are `other`. Names come from callers, and each is kept for ever.
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

/// What is counted while it happens.
#[derive(Debug)]
pub(crate) struct Metrics {
    creates: Family<CreateLabels, Counter>,
    create_duration: LatencyFamily<TemplateLabel>,
    /// From the question to a place for it.
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
    /// A sandbox was made, or not.
    pub(crate) fn record_create<T>(&self, template: &str, made: &Result<T, Error>, took: Duration) {
        let status = match made {
            Ok(_) => "success",
            Err(error) if error.code.status() < 500 => "refused",
            Err(_) => "failed",
        };
        let template = if made.is_ok() {
            let template = self.label(template);
            let of = TemplateLabel {
                template: template.clone(),
            };
            self.create_duration
                .get_or_create(&of)
                .observe(took.as_secs_f64());
            template
        } else if self.known().contains(template) {
            template.to_owned()
        } else {
            // A caller may have made it up.
            "unknown".into()
        };
        self.creates
            .get_or_create(&CreateLabels { template, status })
            .inc();
    }

    /// There is a place for a sandbox that was asked for.
    pub(crate) fn record_queue_wait(&self, waited: Duration) {
        self.queue_wait.observe(waited.as_secs_f64());
    }

    fn known(&self) -> MutexGuard<'_, HashSet<String>> {
        let known = self.templates.lock();
        known.unwrap_or_else(PoisonError::into_inner)
    }

    /// What a template that there is, is called here.
    fn label(&self, template: &str) -> String {
        let mut known = self.known();
        if known.contains(template) || known.len() < MAX_TEMPLATE_LABELS {
            known.insert(template.to_owned());
            return template.to_owned();
        }
        "other".into()
    }
}

impl Core {
    /// Shows what happens here, in the store and in the runtime to whoever asks the registry.
    pub fn register(&self, registry: &mut Registry) {
        self.inner.store.register(registry);
        self.inner.runtime.register(registry);
        let metrics = &self.inner.metrics;
        registry.register(
            "sandbox_creates",
            "Sandboxes that were asked for: success, refused or failed",
            metrics.creates.clone(),
        );
        registry.register_with_unit(
            "sandbox_create_duration",
            "How long it took to make a sandbox, until a command works in it",
            Unit::Seconds,
            metrics.create_duration.clone(),
        );
        registry.register_with_unit(
            "sandbox_create_queue",
            "How long a create waited until there was a place for the sandbox",
            Unit::Seconds,
            metrics.queue_wait.clone(),
        );
        registry.register_collector(Box::new(SandboxCollector(Arc::downgrade(&self.inner))));
    }
}

/// What is counted when somebody wants to know.
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
        let help = "Sandboxes that run";
        let mut all =
            encoder.encode_descriptor("sandboxes_active", help, None, MetricType::Gauge)?;
        for (template, count) in active {
            let labels = [("template", template)];
            ConstGauge::new(count).encode(all.encode_family(&labels)?)?;
        }
        let help = "Sandboxes that there are, by state";
        let mut all = encoder.encode_descriptor("sandboxes", help, None, MetricType::Gauge)?;
        for (state, count) in states {
            let labels = [("state", state.name())];
            ConstGauge::new(count).encode(all.encode_family(&labels)?)?;
        }
        let help = "Age of the oldest acknowledged change that a power cut could still undo";
        let unit = Some(&Unit::Seconds);
        let mut all = encoder.encode_descriptor("unsynced", help, unit, MetricType::Gauge)?;
        for (part, age) in [
            ("database", inner.store.oldest_unsynced()),
            ("sandboxes", inner.runtime.oldest_unsynced()),
        ] {
            let labels = [("part", part)];
            ConstGauge::new(age.as_secs_f64()).encode(all.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

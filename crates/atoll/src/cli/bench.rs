//! `atoll bench`: time and memory of sandboxes on this machine, compared with a process without
//! isolation and, if requested, with other isolation programs. All figures of a run are measured
//! with the default configuration.

mod http;
mod latency;
mod peers;
mod serving;
mod storage;
mod work;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use atoll_model::{Code, Error};
use atoll_worker::{Config as RuntimeConfig, LocalRuntime};
use clap::Args;
use comfy_table::Table;
use serde::Serialize;

use super::run::ensure_base;
use super::{block_on, eprint_line, print_line};
use crate::config::Config;

/// Measure what sandboxes cost on this machine.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll bench                 starts, execs, memory, and what a server has; a minute or two
  atoll bench --work          also a C build, a git clone and a file of 1 GB
  atoll bench --work --peers  also bwrap, runc and podman, where they are installed
  atoll bench --only pause    a few rows again")]
pub(crate) struct Bench {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Compare work inside a sandbox with the same on the host.
    #[arg(long)]
    work: bool,
    /// Compare plain directories with an image that keeps limits.
    #[arg(long)]
    storage: bool,
    /// Measure bwrap, runc and podman too.
    #[arg(long)]
    peers: bool,
    /// Measure only what is named: create, exec, sustained, idle, run, warm, embryos, burst, pause, delete,
    /// stream, echo, neighbour, thousand, adoption, http-memory, http-warm, http-burst, http-command, http-rate,
    /// http-get, http-stream, http-transfer, http-restart, client-exec, client-copy, http-thousand, and what the other
    /// options add.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    only: Vec<String>,
    /// Be the server that a row kills.
    #[arg(long, hide = true, value_name = "DIR")]
    victim: Option<std::path::PathBuf>,
}

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    figure: String,
    p50: String,
    p99: String,
    /// Target of this project; `None` if the figure has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    bar: Option<String>,
    /// Whether the target was met.
    #[serde(skip_serializing_if = "Option::is_none")]
    met: Option<bool>,
}

impl Row {
    fn new(figure: impl Into<String>) -> Self {
        Self {
            figure: figure.into(),
            p50: String::new(),
            p99: String::new(),
            bar: None,
            met: None,
        }
    }

    /// A row of times, with targets for the median and the 99th percentile in milliseconds.
    fn times(
        figure: impl Into<String>,
        samples: &Samples,
        bar: Option<(f64, Option<f64>)>,
    ) -> Self {
        let (p50, p99) = (
            milliseconds(samples.percentile(50.0)),
            milliseconds(samples.percentile(99.0)),
        );
        let row = Self {
            p50: format!("{p50:.2} ms"),
            p99: format!("{p99:.2} ms"),
            ..Self::new(figure)
        };
        match bar {
            Some((first, second)) => {
                let text = second.map_or(format!("≤ {first}"), |second| {
                    format!("≤ {first} / {second}")
                });
                row.bar(
                    text,
                    p50 <= first && second.is_none_or(|second| p99 <= second),
                )
            }
            None => row,
        }
    }

    /// A row with one value.
    fn value(figure: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            p50: value.into(),
            ..Self::new(figure)
        }
    }

    fn bar(mut self, bar: impl Into<String>, met: bool) -> Self {
        self.bar = Some(bar.into());
        self.met = Some(met);
        self
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// Measured times.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    fn add(&mut self, begin: Instant) {
        self.0.push(begin.elapsed());
    }

    fn percentile(&self, percent: f64) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let index = ((sorted.len() as f64) * percent / 100.0).ceil() as usize;
        sorted
            .get(index.saturating_sub(1))
            .copied()
            .unwrap_or_default()
    }
}

impl Bench {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        atoll_worker::check_host()?;
        ensure_base(config)?;
        if let Some(data) = &self.victim {
            block_on(serving::victim(data, config))?;
        }
        let rows = block_on(self.measure(config))?;
        if self.json {
            let text = serde_json::to_string_pretty(&rows);
            print_line(&text.map_err(|error| Error::new(Code::Internal, error.to_string()))?);
        } else {
            show(&rows);
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Whether a row is selected by `--only`.
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }

    async fn measure(&self, config: &Config) -> Result<Vec<Row>, Error> {
        let runtime = LocalRuntime::open(RuntimeConfig {
            templates: config.templates(),
            ..RuntimeConfig::new(&config.data)
        })
        .await?;
        let measured = async {
            let mut rows = vec![latency::floor()?];
            if self.wants("create") {
                rows.extend(latency::create(&runtime).await?);
            }
            if self.peers && self.wants("peers") {
                rows.extend(peers::measure(config, &runtime).await?);
            }
            if self.wants("exec") {
                let what = "exec of /bin/true in a running sandbox";
                rows.push(latency::exec(&runtime, what, (1.3, 4.0)).await?);
            }
            if self.wants("sustained") {
                rows.push(latency::sustained(&runtime).await?);
            }
            if self.wants("idle") {
                rows.extend(latency::idle(&runtime).await?);
            }
            if self.wants("run") {
                rows.push(latency::command(config)?);
            }
            rows.extend(serving::measure(config, self).await?);
            rows.extend(http::measure(config, self).await?);
            if self.work && self.wants("build") {
                rows.push(work::build(config).await?);
            }
            if self.work && self.wants("clone") {
                rows.push(work::clone(config).await?);
            }
            if self.work && self.wants("transfer") {
                rows.extend(work::transfer(config).await?);
            }
            if self.storage && self.wants("storage") {
                rows.extend(storage::compare(config).await?);
            }
            Ok(rows)
        };
        let rows: Result<Vec<Row>, Error> = measured.await;
        let closed = runtime.close().await;
        let rows = rows?;
        closed?;
        Ok(rows)
    }
}

fn show(rows: &[Row]) {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["figure", "p50", "p99", "bar", ""]);
    for row in rows {
        let met = match row.met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        let bar = row.bar.clone().unwrap_or_default();
        table.add_row([
            row.figure.clone(),
            row.p50.clone(),
            row.p99.clone(),
            bar,
            met.to_owned(),
        ]);
    }
    print_line(&table.to_string());
}

/// Announces the next measurement, and waits for the cleanup of the previous one.
fn progress(what: &str) {
    eprint_line(&format!("measuring {what} …"));
    settle();
}

/// Waits until background work is done: the pool is refilled, the files of deleted sandboxes are removed, and the kernel
/// has freed their memory. Waits for at most 3 s.
fn settle() {
    const CHECK_INTERVAL: Duration = Duration::from_millis(100);
    let mut before = idleness();
    // A machine with other load never becomes idle.
    for _ in 0..30 {
        std::thread::sleep(CHECK_INTERVAL);
        let now = idleness();
        let (idle, all) = (now.0 - before.0, now.1 - before.1);
        if idle * 20 >= all * 19 {
            return;
        }
        before = now;
    }
}

/// Idle time and total time of all processors since boot, in ticks.
fn idleness() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = text.lines().next().unwrap_or_default();
    let ticks = first.split_whitespace().skip(1).map(str::parse::<u64>);
    let ticks: Vec<u64> = ticks.map(Result::unwrap_or_default).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; `user` includes the guest columns after them.
    let all = ticks.iter().take(8).sum();
    (ticks.iter().skip(3).take(2).sum(), all)
}

/// Error of a step of the benchmark itself.
fn failed(what: &str, error: &std::io::Error) -> Error {
    Error::new(Code::Internal, format!("{what}: {error}"))
}

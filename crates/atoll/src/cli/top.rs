//! `atoll top`: current resource usage and latencies of a server.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use atoll_client::{Client, Request, query};
use atoll_model::{Bytes, Error};
use clap::Args;
use comfy_table::CellAlignment;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::print_line;
use super::run::Signals;
use super::sandbox::{since, span, state, until};
use super::server_args::{Remote, below, plain, print_json, text};
use crate::cli::borderless_table;
use crate::config::Config;

/// Maximum number of sandboxes whose usage is requested.
const MOST: usize = 100;
/// Minimum number of responses for which latencies are shown.
const REMEMBERED: usize = 60;

/// Timeout of a refresh: after it the previous values are shown and marked as old.
const SOON: Duration = Duration::from_secs(5);

/// Show resource usage of sandboxes, the rate of creates, and request latencies.
///
/// On a terminal the display is refreshed until Ctrl-C; otherwise it is printed once.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll top
  atoll top --json | jq '.sandboxes[] | {sandboxID, cpuUsedPct: .usage.cpuUsedPct}'")]
pub(crate) struct Top {
    /// Seconds between two refreshes.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Print once and exit.
    #[arg(long)]
    once: bool,
    /// Print JSON once and exit.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: Remote,
}

/// Values of one refresh.
struct Seen {
    sandboxes: Vec<Value>,
    pool: Value,
}

impl Top {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        self.remote.with(config, async |client| {
            let mut latencies = VecDeque::new();
            if !self.json && !self.once && std::io::stdout().is_terminal() {
                return self.live(client, &mut latencies).await;
            }
            let seen = look(client, &mut latencies).await?;
            if self.json {
                return print_json(&json!({ "pool": seen.pool, "sandboxes": seen.sandboxes }));
            }
            print_line(page(client, &seen, &latencies, None).trim_end());
            Ok(())
        })?;
        Ok(ExitCode::SUCCESS)
    }

    /// Refreshes until a signal arrives, which also interrupts requests.
    async fn live(&self, client: &Client, latencies: &mut VecDeque<Duration>) -> Result<(), Error> {
        let mut signals = Signals::new()?;
        tokio::select! {
            _ = signals.next() => Ok(()),
            ended = self.draw(client, latencies) => ended,
        }
    }

    async fn draw(&self, client: &Client, latencies: &mut VecDeque<Duration>) -> Result<(), Error> {
        let mut events = client.events(Request::get("/events"));
        let mut ticks = interval(Duration::from_secs(self.interval));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut made, mut deleted) = (0_u32, 0_u32);
        let mut seen = look(client, latencies).await?;
        let (mut at, mut last) = (Instant::now(), Instant::now());
        let _screen = Screen::new();
        loop {
            tokio::select! {
                event = events.next() => match event? {
                    Some(event) => {
                        made += u32::from(event.name == "sandbox.created");
                        deleted += u32::from(event.name == "sandbox.deleted");
                    }
                    None => events = client.events(Request::get("/events")),
                },
                _ = ticks.tick() => {
                    let trouble = match timeout(SOON, look(client, latencies)).await {
                        Ok(Ok(new)) => {
                            (seen, at) = (new, Instant::now());
                            None
                        }
                        Ok(Err(error)) => Some(error.message),
                        Err(_) => Some(format!("{} does not answer", client.target())),
                    };
                    let passed = last.elapsed().as_secs_f64().max(0.1);
                    let rates = (f64::from(made) / passed, f64::from(deleted) / passed);
                    (made, deleted, last) = (0, 0, Instant::now());
                    let page = page(client, &seen, latencies, Some(rates));
                    let old = trouble.map_or_else(String::new, |trouble| {
                        format!("as it was {} ago: {}\n", span(at.elapsed().as_secs()), plain(&trouble))
                    });
                    Screen::show(&format!("{old}{page}"));
                }
            }
        }
    }
}

/// Fetches all values once.
async fn look(client: &Client, latencies: &mut VecDeque<Duration>) -> Result<Seen, Error> {
    let mut ask = async |path: &str| {
        let begin = Instant::now();
        let answer = client.send_json(&Request::get(path)).await;
        latencies.push_back(begin.elapsed());
        if latencies.len() > REMEMBERED {
            latencies.pop_front();
        }
        answer
    };
    let pool = ask("/readyz").await?["pool"].take();
    let mut sandboxes = client.list("/sandboxes", &[]).await?;
    let start = (Timestamp::now().as_second() - 6).to_string();
    for sandbox in sandboxes.iter_mut().take(MOST) {
        if text(sandbox, "state") != "running" {
            continue;
        }
        let path = below(text(sandbox, "sandboxID"), &["metrics"]);
        // The sandbox may have been deleted meanwhile.
        let samples = ask(&query(&path, &[("start", &start)])).await;
        let last = samples
            .ok()
            .and_then(|samples| samples.as_array()?.last().cloned());
        sandbox["usage"] = last.unwrap_or(Value::Null);
    }
    Ok(Seen { sandboxes, pool })
}

/// Formats the values.
fn page(
    client: &Client,
    seen: &Seen,
    latencies: &VecDeque<Duration>,
    rates: Option<(f64, f64)>,
) -> String {
    let mut sorted: Vec<_> = latencies.iter().collect();
    sorted.sort();
    let milliseconds = |at: usize| {
        let time = sorted.get(at.min(sorted.len().saturating_sub(1)));
        time.map_or(0.0, |time| time.as_secs_f64() * 1e3)
    };
    let running = seen
        .sandboxes
        .iter()
        .filter(|one| text(one, "state") == "running");
    let mut page = format!("{}\n", client.target());
    let _ = writeln!(
        page,
        "sandboxes {} ({} running)   pool {} warm, {} embryos   answers {:.1} ms, at most {:.1} ms",
        seen.sandboxes.len(),
        running.count(),
        seen.pool["warm"],
        seen.pool["embryos"],
        milliseconds(sorted.len() / 2),
        milliseconds(usize::MAX),
    );
    if let Some((made, deleted)) = rates {
        let _ = writeln!(page, "made {made:.1} /s   deleted {deleted:.1} /s");
    }
    let mut table = borderless_table();
    table.set_header([
        "ID", "NAME", "STATE", "CPU %", "MEMORY", "DISK", "PIDS", "AGE", "ENDS",
    ]);
    let mut rows: Vec<&Value> = seen.sandboxes.iter().collect();
    let cpu = |one: &Value| one["usage"]["cpuUsedPct"].as_f64().unwrap_or(-1.0);
    rows.sort_by(|one, other| cpu(other).total_cmp(&cpu(one)));
    for one in rows {
        let usage = &one["usage"];
        let size = |name: &str| {
            let size = usage[name].as_u64();
            size.map_or_else(|| "-".to_owned(), |size| Bytes(size).to_string())
        };
        let percent = usage["cpuUsedPct"].as_f64();
        table.add_row([
            text(one, "sandboxID").to_owned(),
            plain(text(one, "alias")),
            state(one),
            percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1}")),
            size("memUsed"),
            size("diskUsed"),
            usage["pids"]
                .as_u64()
                .map_or_else(|| "-".to_owned(), |pids| pids.to_string()),
            since(text(one, "createdAt")),
            until(one),
        ]);
    }
    for column in 3..7 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let _ = writeln!(page, "\n{table}");
    page
}

/// Alternate screen of the terminal, until dropped.
struct Screen;

impl Screen {
    fn new() -> Self {
        let mut stdout = std::io::stdout();
        let _ = write!(stdout, "\x1b[?1049h\x1b[?25l");
        let _ = stdout.flush();
        Self
    }

    /// Writes as many lines as fit.
    fn show(page: &str) {
        use std::os::fd::AsFd as _;
        let rows = super::run::terminal::current(std::io::stdout().as_fd()).rows;
        let lines: Vec<&str> = page.lines().take(usize::from(rows)).collect();
        let mut stdout = std::io::stdout();
        let _ = write!(stdout, "\x1b[H\x1b[2J{}", lines.join("\n"));
        let _ = stdout.flush();
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut stdout = std::io::stdout();
        let _ = write!(stdout, "\x1b[?25h\x1b[?1049l");
        let _ = stdout.flush();
    }
}

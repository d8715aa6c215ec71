//! Latency of create, exec and delete without pools, and memory of idle sandboxes.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use atoll_model::{Error, ExecSpec, SandboxInfo, SandboxSpec};
use atoll_worker::LocalRuntime;

use super::{Row, Samples, failed, milliseconds, progress, settle};
use crate::config::Config;

/// The floor: time of a process without isolation.
pub(super) fn floor() -> Result<Row, Error> {
    progress("the floor");
    let mut samples = Samples::default();
    for _ in 0..300 {
        let begin = Instant::now();
        let status = Command::new("/bin/true").stdin(Stdio::null()).status();
        status.map_err(|error| failed("run /bin/true", &error))?;
        samples.add(begin);
    }
    Ok(Row::times(
        "floor: fork + exec of /bin/true on the host",
        &samples,
        None,
    ))
}

/// Create without pools, until the result of a first command; back to back, and after idle gaps.
pub(super) async fn create(runtime: &LocalRuntime) -> Result<Vec<Row>, Error> {
    progress("create → first exec result");
    let mut back_to_back = Stages::default();
    for _ in 0..200 {
        back_to_back.measure_create(runtime).await?;
    }
    let mut after_gaps = Stages::default();
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        after_gaps.measure_create(runtime).await?;
    }
    Ok(vec![
        Row::times(
            "create → first exec result, nothing prepared",
            &back_to_back.all,
            Some((9.0, Some(30.0))),
        ),
        back_to_back.row(),
        Row::times(
            "the same after 100 ms of idleness each",
            &after_gaps.all,
            None,
        ),
        after_gaps.row(),
    ])
}

/// Times of the stages of a create, and of the whole until the result of a first command.
#[derive(Default)]
pub(super) struct Stages {
    pub(super) all: Samples,
    slot: Samples,
    clone: Samples,
    root: Samples,
    start: Samples,
}

impl Stages {
    /// Measures one create and deletes the sandbox.
    pub(super) async fn measure_create(&mut self, runtime: &LocalRuntime) -> Result<(), Error> {
        let begin = Instant::now();
        let created = runtime.create(SandboxSpec::default()).await?;
        run_true(runtime, &created.id).await?;
        self.add(begin, &created);
        runtime.delete(&created.id).await
    }

    /// Adds the times of a create that began at `begin`.
    pub(super) fn add(&mut self, begin: Instant, created: &SandboxInfo) {
        self.all.add(begin);
        self.slot.0.push(created.timings.slot);
        self.clone.0.push(created.timings.clone);
        self.root.0.push(created.timings.root);
        self.start.0.push(created.timings.start);
    }

    /// The medians of the stages in one line.
    pub(super) fn row(&self) -> Row {
        let text = |percent| {
            let stages = [&self.slot, &self.clone, &self.root, &self.start];
            let times =
                stages.map(|stage| format!("{:.1}", milliseconds(stage.percentile(percent))));
            times.join(" + ")
        };
        Row {
            p99: text(99.0),
            ..Row::value(
                "    its stages: slot + clone + root + start, ms",
                text(50.0),
            )
        }
    }
}

pub(super) async fn run_true(
    runtime: &LocalRuntime,
    id: &atoll_model::SandboxId,
) -> Result<(), Error> {
    let exec = runtime.exec(id, ExecSpec::argv(["/bin/true"])).await?;
    let done = exec.finish(&[], 1024).await?;
    if done.status.success() {
        return Ok(());
    }
    Err(Error::new(
        atoll_model::Code::Internal,
        format!("/bin/true ended with {:?}", done.status),
    ))
}

/// Exec of `/bin/true` in a running sandbox, until its output is read to the end.
pub(super) async fn exec(
    runtime: &LocalRuntime,
    figure: &str,
    (p50, p99): (f64, f64),
) -> Result<Row, Error> {
    progress("exec in a running sandbox");
    let id = runtime.create(SandboxSpec::default()).await?.id;
    settle();
    let mut samples = Samples::default();
    for _ in 0..1000 {
        let begin = Instant::now();
        run_true(runtime, &id).await?;
        samples.add(begin);
    }
    runtime.delete(&id).await?;
    Ok(Row::times(figure, &samples, Some((p50, Some(p99)))))
}

/// Sandboxes that four concurrent callers create and delete per second.
pub(super) async fn sustained(runtime: &LocalRuntime) -> Result<Row, Error> {
    progress("create + delete, sustained");
    const LENGTH: Duration = Duration::from_secs(5);
    let begin = Instant::now();
    let caller = || async {
        let mut count = 0_u32;
        while begin.elapsed() < LENGTH {
            let id = runtime.create(SandboxSpec::default()).await?.id;
            runtime.delete(&id).await?;
            count += 1;
        }
        Ok::<_, Error>(count)
    };
    let (a, b, c, d) = tokio::try_join!(caller(), caller(), caller(), caller())?;
    let rate = f64::from(a + b + c + d) / begin.elapsed().as_secs_f64();
    Ok(
        Row::value("create + delete, sustained", format!("{rate:.0} /s"))
            .bar("≥ 120 /s", rate >= 120.0),
    )
}

/// Memory of a sandbox without commands.
pub(super) async fn idle(runtime: &LocalRuntime) -> Result<Vec<Row>, Error> {
    progress("memory of idle sandboxes");
    const COUNT: u64 = 100;
    // The first sandbox loads the pages that all share.
    let first = runtime.create(SandboxSpec::default()).await?.id;
    let before = available();
    let mut ids = Vec::new();
    for _ in 0..COUNT {
        ids.push(runtime.create(SandboxSpec::default()).await?.id);
    }
    let used = before.saturating_sub(available()) / COUNT;
    let mut pss = 0;
    let mut parent = 0;
    for id in &ids {
        let pid = runtime.host_pid(id)?;
        pss += proportional(pid);
        pss += children_of(pid).map(proportional).sum::<u64>();
        parent = parent_of(pid);
    }
    let pss = (pss + proportional(parent)) / COUNT;
    ids.push(first);
    for id in ids {
        runtime.delete(&id).await?;
    }
    Ok(vec![
        Row::value("an idle sandbox: PSS of our processes", format!("{pss} kB"))
            .bar("≤ 256 kB", pss <= 256),
        Row::value("an idle sandbox: MemAvailable", format!("{used} kB"))
            .bar("≤ 1024 kB", used <= 1024),
    ])
}

pub(super) fn available() -> u64 {
    kilobytes("/proc/meminfo", "MemAvailable:")
}

fn proportional(pid: i32) -> u64 {
    kilobytes(&format!("/proc/{pid}/smaps_rollup"), "Pss:")
}

fn parent_of(pid: i32) -> i32 {
    kilobytes(&format!("/proc/{pid}/status"), "PPid:") as i32
}

fn children_of(pid: i32) -> impl Iterator<Item = i32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let list = std::fs::read_to_string(path).unwrap_or_default();
    let pids: Vec<i32> = list
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect();
    pids.into_iter()
}

pub(super) fn kilobytes(path: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// `atoll run -- true` as a process, from start to exit.
pub(super) fn command(config: &Config) -> Result<Row, Error> {
    progress("atoll run -- true");
    let mut samples = Samples::default();
    for _ in 0..60 {
        let begin = Instant::now();
        let status = Command::new("/proc/self/exe")
            .args(["run", "--local", "--", "true"])
            .env("ATOLL_DATA_DIR", &config.data)
            .stdin(Stdio::null())
            .status();
        let status = status.map_err(|error| failed("run atoll", &error))?;
        if !status.success() {
            return Err(Error::new(
                atoll_model::Code::Internal,
                format!("atoll run -- true: {status}"),
            ));
        }
        samples.add(begin);
    }
    Ok(Row::times(
        "atoll run -- true, process start to exit",
        &samples,
        Some((25.0, None)),
    ))
}

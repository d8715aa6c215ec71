//! What a server has: sandboxes that are ready before they are asked for, many at once, that pause, outlast
//! their server and hold their own against a bad neighbour.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use atoll_model::{
    Chunk, Code, Error, ExecSpec, HostMount, Network, SandboxId, SandboxSpec, TerminalSize,
};
use atoll_worker::{Config as RuntimeConfig, LocalRuntime};

use super::latency::{Stages, available, exec, run_true};
use super::{Bench, Row, Samples, failed, milliseconds, progress, settle};
use crate::config::Config;

/// A data directory of the bench's own, removed at the end.
pub(super) struct Data(PathBuf);

impl Data {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn new(config: &Config) -> Self {
        let name = format!("bench-serving-{}", std::process::id());
        Self(config.data.join(name))
    }

    fn nothing_ready(&self, config: &Config) -> RuntimeConfig {
        RuntimeConfig {
            warm: 0,
            embryos: 0,
            ..self.config(config)
        }
    }

    fn config(&self, config: &Config) -> RuntimeConfig {
        RuntimeConfig {
            templates: config.templates(),
            ..RuntimeConfig::serving(&self.0)
        }
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        let facts = atoll_jail::facts::Facts::read();
        let scope = atoll_worker::instance::Scope::Below(&self.0);
        // Its keeper may still be on its way out.
        let until = Instant::now() + Duration::from_secs(5);
        while Instant::now() < until {
            match atoll_worker::instance::collect(scope, &facts) {
                Ok(collected) if collected.instances.is_empty() => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                _ => break,
            }
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What is asked for of a server's rows.
pub(super) async fn measure(config: &Config, bench: &Bench) -> Result<Vec<Row>, Error> {
    let data = Data::new(config);
    let mut rows = Vec::new();
    let names = [
        "warm",
        "embryos",
        "burst",
        "exec",
        "sustained",
        "pause",
        "delete",
        "stream",
        "echo",
        "neighbour",
    ];
    if names.iter().any(|name| bench.wants(name)) {
        let runtime = LocalRuntime::open(data.config(config)).await?;
        let measured = with_all_ready(&runtime, bench).await;
        for info in runtime.list() {
            runtime.delete(&info.id).await?;
        }
        runtime.close().await?;
        rows.extend(measured?);
    }
    if bench.wants("thousand") {
        rows.extend(thousand(&data, config).await?);
    }
    if bench.wants("adoption") {
        rows.push(adoption(&data, config).await?);
    }
    Ok(rows)
}

async fn with_all_ready(runtime: &LocalRuntime, bench: &Bench) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    if bench.wants("warm") {
        rows.push(warm(runtime).await?);
    }
    if bench.wants("embryos") {
        rows.push(idle_gaps(runtime).await?);
    }
    if bench.wants("burst") {
        rows.push(burst(runtime).await?);
    }
    if bench.wants("exec") {
        let row = exec(
            runtime,
            "exec that outlasts its server, durable log",
            (1.4, 4.0),
        );
        rows.push(row.await?);
    }
    if bench.wants("sustained") {
        rows.push(sustained(runtime, Network::None, 220.0).await?);
        rows.push(sustained(runtime, Network::Internet, 100.0).await?);
    }
    if bench.wants("pause") {
        rows.extend(pauses(runtime).await?);
    }
    if bench.wants("delete") {
        rows.extend(deletes(runtime).await?);
    }
    if bench.wants("stream") {
        rows.push(stream(runtime).await?);
    }
    if bench.wants("echo") {
        rows.push(echo(runtime).await?);
    }
    if bench.wants("neighbour") {
        rows.push(neighbour(runtime).await?);
    }
    Ok(rows)
}

/// Waits until so many are ready.
async fn filled(runtime: &LocalRuntime, warm: usize, embryos: usize) -> Result<(), Error> {
    let begin = Instant::now();
    while runtime.ready().0 < warm || runtime.ready().1 < embryos {
        if begin.elapsed() > Duration::from_mins(1) {
            return Err(Error::new(Code::Timeout, "the pool did not fill"));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

async fn create(runtime: &LocalRuntime) -> Result<SandboxId, Error> {
    Ok(runtime.create(SandboxSpec::default()).await?.id)
}

async fn create_and_run(runtime: &LocalRuntime) -> Result<SandboxId, Error> {
    let id = create(runtime).await?;
    run_true(runtime, &id).await?;
    Ok(id)
}

async fn warm(runtime: &LocalRuntime) -> Result<Row, Error> {
    progress("warm starts");
    let mut samples = Samples::default();
    for _ in 0..200 {
        if runtime.ready().0 < 4 {
            filled(runtime, 16, 96).await?;
        }
        let begin = Instant::now();
        let id = create_and_run(runtime).await?;
        samples.add(begin);
        runtime.delete(&id).await?;
    }
    let row = "create → first exec result, warm (pool of 16, filled again and again)";
    Ok(Row::times(row, &samples, Some((2.0, Some(5.0)))))
}

/// With the warm ones taken and a pause before each, so that only embryos are left.
async fn idle_gaps(runtime: &LocalRuntime) -> Result<Row, Error> {
    progress("starts from embryos");
    let mut samples = Samples::default();
    // With something of the host in it, so that no warm one fits.
    let spec = SandboxSpec {
        mounts: vec![HostMount {
            source: "/usr".into(),
            target: "/mnt".into(),
        }],
        ..SandboxSpec::default()
    };
    for _ in 0..60 {
        filled(runtime, 0, 8).await?;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let begin = Instant::now();
        let id = runtime.create(spec.clone()).await?.id;
        run_true(runtime, &id).await?;
        samples.add(begin);
        runtime.delete(&id).await?;
    }
    let row = "the same, nothing warm but embryos ready, after 100 ms of idleness each";
    Ok(Row::times(row, &samples, Some((5.0, Some(15.0)))))
}

async fn burst(runtime: &LocalRuntime) -> Result<Row, Error> {
    progress("100 at once");
    let mut samples = Samples::default();
    for _ in 0..3 {
        filled(runtime, 16, 96).await?;
        let begin = Instant::now();
        let all: Vec<_> = (0..100)
            .map(|_| {
                let runtime = runtime.clone();
                tokio::spawn(async move {
                    let id = create_and_run(&runtime).await?;
                    Ok::<_, Error>((id, begin.elapsed()))
                })
            })
            .collect();
        for one in all {
            let (id, took) = joined(one.await)?;
            samples.0.push(took);
            runtime.delete(&id).await?;
        }
    }
    let p99 = milliseconds(samples.percentile(99.0));
    let row = Row::times("100 at once, to the first exec result", &samples, None);
    Ok(row.bar("p99 ≤ 250", p99 <= 250.0))
}

pub(super) fn joined<T>(
    done: Result<Result<T, Error>, tokio::task::JoinError>,
) -> Result<T, Error> {
    done.map_err(|error| Error::new(Code::Internal, error.to_string()))?
}

async fn sustained(runtime: &LocalRuntime, network: Network, bar: f64) -> Result<Row, Error> {
    progress(&format!("create + delete with a pool, network {network}"));
    const LENGTH: Duration = Duration::from_secs(5);
    filled(runtime, 16, 96).await?;
    let begin = Instant::now();
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let runtime = runtime.clone();
            tokio::spawn(async move {
                let mut made = 0_u32;
                while begin.elapsed() < LENGTH {
                    let spec = SandboxSpec {
                        network,
                        ..SandboxSpec::default()
                    };
                    let id = runtime.create(spec).await?.id;
                    runtime.delete(&id).await?;
                    made += 1;
                }
                Ok::<_, Error>(made)
            })
        })
        .collect();
    let mut made = 0;
    for caller in callers {
        made += joined(caller.await)?;
    }
    let rate = f64::from(made) / begin.elapsed().as_secs_f64();
    let text = format!("create + delete, sustained, network {network}");
    let row = Row::value(text, format!("{rate:.0} /s"));
    Ok(row.bar(format!("≥ {bar} /s"), rate >= bar))
}

async fn pauses(runtime: &LocalRuntime) -> Result<Vec<Row>, Error> {
    progress("pause and resume");
    let mut rows = Vec::new();
    for (what, line) in [
        (
            "sleeping",
            "for i in $(seq 20); do sleep 600 & done; echo on; wait",
        ),
        (
            "spinning",
            "for i in $(seq 20); do while :; do :; done & done; echo on; wait",
        ),
    ] {
        let id = create(runtime).await?;
        settle();
        let mut exec = runtime.exec(&id, ExecSpec::shell(line)).await?;
        exec.stdout.read(&mut [0; 16]).await?;
        let (mut paused, mut resumed) = (Samples::default(), Samples::default());
        for _ in 0..200 {
            let begin = Instant::now();
            runtime.pause(&id).await?;
            paused.add(begin);
            let begin = Instant::now();
            runtime.resume(&id).await?;
            resumed.add(begin);
        }
        for (verb, samples) in [("pause", paused), ("resume", resumed)] {
            let p99 = milliseconds(samples.percentile(99.0));
            let row = Row::times(format!("{verb}, 20 processes {what}"), &samples, None);
            rows.push(row.bar("p99 ≤ 3", p99 <= 3.0));
        }
        runtime.delete(&id).await?;
    }
    Ok(rows)
}

async fn deletes(runtime: &LocalRuntime) -> Result<Vec<Row>, Error> {
    progress("deletes");
    let (mut plain, mut crowded) = (Samples::default(), Samples::default());
    for _ in 0..100 {
        let id = create_and_run(runtime).await?;
        let begin = Instant::now();
        runtime.delete(&id).await?;
        plain.add(begin);
    }
    for _ in 0..10 {
        let id = create(runtime).await?;
        let line = "for i in $(seq 510); do sleep 600 & done; echo on; wait";
        let mut exec = runtime.exec(&id, ExecSpec::shell(line)).await?;
        exec.stdout.read(&mut [0; 16]).await?;
        let begin = Instant::now();
        runtime.delete(&id).await?;
        crowded.add(begin);
    }
    let one = milliseconds(plain.percentile(99.0));
    let many = milliseconds(crowded.percentile(99.0));
    Ok(vec![
        Row::times("delete", &plain, None).bar("p99 ≤ 10", one <= 10.0),
        Row::times("delete with 512 processes", &crowded, None).bar("p99 ≤ 250", many <= 250.0),
    ])
}

/// 1 GB of standard output to one reader, through the log.
async fn stream(runtime: &LocalRuntime) -> Result<Row, Error> {
    progress("a stream of 1 GB");
    let id = create(runtime).await?;
    let before = resident();
    let begin = Instant::now();
    let line = "head -c 1000000000 /dev/zero";
    let control = runtime.exec(&id, ExecSpec::shell(line)).await?.control;
    let mut reader = control.output(0);
    let mut heard = 0;
    while let Some(chunk) = reader.next().await? {
        match chunk {
            Chunk::Data { bytes, .. } => heard += bytes.len() as u64,
            Chunk::Gap { .. } => return Err(Error::new(Code::Internal, "a gap")),
            Chunk::Exit(_) => break,
        }
    }
    let rate = heard as f64 / 1e6 / begin.elapsed().as_secs_f64();
    let grown = resident().saturating_sub(before) / 1024;
    runtime.delete(&id).await?;
    let text = format!("1 GB of stdout to one reader (our memory grew by {grown} MB)");
    let met = rate >= 400.0 && heard == 1_000_000_000 && grown < 64;
    Ok(Row::value(text, format!("{rate:.0} MB/s")).bar("≥ 400 MB/s", met))
}

fn resident() -> u64 {
    super::latency::kilobytes("/proc/self/status", "VmRSS:")
}

async fn echo(runtime: &LocalRuntime) -> Result<Row, Error> {
    progress("terminal echo");
    let id = create(runtime).await?;
    let spec = ExecSpec::argv(["/bin/cat"]).terminal(TerminalSize::default());
    let control = runtime.exec(&id, spec).await?.control;
    let mut output = control.output(0);
    let mut samples = Samples::default();
    for _ in 0..500 {
        let begin = Instant::now();
        control.write_all(b"x").await?;
        match output.next().await? {
            Some(Chunk::Data { .. }) => samples.add(begin),
            other => return Err(Error::new(Code::Internal, format!("{other:?}"))),
        }
    }
    runtime.delete(&id).await?;
    Ok(Row::times("terminal echo", &samples, Some((0.5, None))))
}

/// Commands of one sandbox while another does its worst.
async fn neighbour(runtime: &LocalRuntime) -> Result<Row, Error> {
    progress("a bad neighbour");
    let (quiet_id, bad) = (create(runtime).await?, create(runtime).await?);
    settle();
    let commands = async || {
        let mut samples = Samples::default();
        for _ in 0..1000 {
            let begin = Instant::now();
            run_true(runtime, &quiet_id).await?;
            samples.add(begin);
        }
        Ok::<_, Error>(samples)
    };
    let quiet = commands().await?;
    let line = "for i in 1 2 3 4 5 6 7 8; do while :; do :; done & done; \
                (while :; do /bin/true & wait; done) & \
                (while :; do head -c 50000000 /dev/zero > /tmp/full; done) & echo on; wait";
    let mut exec = runtime.exec(&bad, ExecSpec::shell(line)).await?;
    exec.stdout.read(&mut [0; 16]).await?;
    let loud = commands().await?;
    runtime.delete(&bad).await?;
    runtime.delete(&quiet_id).await?;
    let (before, after) = (quiet.percentile(99.0), loud.percentile(99.0));
    let ratio = after.as_secs_f64() / before.as_secs_f64();
    let text = format!(
        "exec beside a neighbour that spins, forks and writes, p99 {:.1} ms quiet",
        milliseconds(before)
    );
    let row = Row::times(text, &loud, None);
    Ok(row.bar(format!("p99 ≤ 2 × quiet ({ratio:.1} ×)"), ratio <= 2.0))
}

/// Without anything ready, to compare like with like.
async fn thousand(data: &Data, config: &Config) -> Result<Vec<Row>, Error> {
    progress("1,000 live sandboxes");
    const COUNT: usize = 1000;
    let runtime = LocalRuntime::open(data.nothing_ready(config)).await?;
    let before = available();
    let (mut first, mut last) = (Stages::default(), Stages::default());
    let mut ids = Vec::new();
    for number in 0..COUNT {
        let begin = Instant::now();
        let info = runtime.create(SandboxSpec::default()).await?;
        if !(100..COUNT - 100).contains(&number) {
            let stages = if number < 100 { &mut first } else { &mut last };
            stages.add(begin, &info);
        }
        ids.push(info.id);
    }
    let each = before.saturating_sub(available()) / COUNT as u64;
    let begin = Instant::now();
    let all: Vec<_> = ids
        .into_iter()
        .map(|id| {
            let runtime = runtime.clone();
            tokio::spawn(async move { runtime.delete(&id).await })
        })
        .collect();
    for one in all {
        joined(one.await)?;
    }
    let deleted = begin.elapsed().as_secs_f64();
    runtime.close().await?;
    let median = |stages: &Stages| stages.all.percentile(50.0).as_secs_f64().max(1e-9);
    let ratio = median(&last) / median(&first);
    Ok(vec![
        Row::value(
            "1,000 live sandboxes, MemAvailable each",
            format!("{each} kB"),
        )
        .bar("≤ 1024 kB", each <= 1024),
        Row::value(
            "create at 1,000, against create at 1",
            format!("{ratio:.2} ×"),
        )
        .bar("≤ 1.6 ×", ratio <= 1.6),
        first.row(),
        last.row(),
        Row::value("all 1,000 deleted", format!("{deleted:.1} s")).bar("≤ 10 s", deleted <= 10.0),
    ])
}

/// How long it takes to go on with 100 sandboxes of a server that was killed.
async fn adoption(data: &Data, config: &Config) -> Result<Row, Error> {
    progress("adoption");
    let mut samples = Samples::default();
    for _ in 0..3 {
        let mut server = Command::new("/proc/self/exe")
            .args(["bench", "--victim"])
            .arg(&data.0)
            .env("ATOLL_DATA_DIR", &config.data)
            .stdout(Stdio::piped())
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| failed("start a server", &error))?;
        let mut line = String::new();
        if let Some(said) = server.stdout.take() {
            let _ = BufReader::new(said).read_line(&mut line);
        }
        let killed = server.kill().and_then(|()| server.wait());
        killed.map_err(|error| failed("kill a server", &error))?;
        let begin = Instant::now();
        let runtime = LocalRuntime::open(data.nothing_ready(config)).await?;
        samples.add(begin);
        let all = runtime.list();
        if all.len() != 100 {
            let message = format!("{} of 100 were adopted", all.len());
            return Err(Error::new(Code::Internal, message));
        }
        for info in all {
            run_true(&runtime, &info.id).await?;
            runtime.delete(&info.id).await?;
        }
        runtime.close().await?;
    }
    let row = "100 sandboxes adopted after kill -9 of their server";
    Ok(Row::times(row, &samples, Some((1000.0, None))))
}

/// A server with 100 sandboxes that waits to be killed.
pub(super) async fn victim(data: &Path, config: &Config) -> Result<(), Error> {
    let data = Data(data.to_owned());
    let runtime = LocalRuntime::open(data.nothing_ready(config)).await?;
    for _ in 0..100 {
        create_and_run(&runtime).await?;
    }
    super::say("ready");
    std::future::pending().await
}

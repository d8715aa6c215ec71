//! 1,000 sandboxes at a time, and adoption after the server was killed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use atoll_model::{Code, Error, SandboxSpec};
use atoll_worker::LocalRuntime;

use super::super::latency::{Stages, available, run_true};
use super::super::{Row, Samples, failed, progress};
use super::{Data, create_and_run, flatten_join};
use crate::config::Config;

/// Memory and create latency with 1,000 sandboxes. Without pools: the first and the last creates take the same path.
pub(super) async fn thousand(data: &Data, config: &Config) -> Result<Vec<Row>, Error> {
    progress("1,000 live sandboxes");
    const COUNT: usize = 1000;
    let runtime = LocalRuntime::open(data.without_pools(config)).await?;
    populate_memory();
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
        flatten_join(one.await)?;
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

/// Allocates memory for all sandboxes and frees it. A virtual machine with a balloon has returned unused memory to its
/// host and gets it back page by page; the last creates would include that time, the first would not.
fn populate_memory() {
    const NEEDED: usize = 2 << 30;
    const PAGE: usize = 4096;
    let needed = NEEDED.min(available() as usize / 2 * 1024);
    let mut memory = vec![0_u8; needed];
    for page in memory.chunks_mut(PAGE) {
        page[0] = 1;
    }
    std::hint::black_box(&memory);
}

/// Time to adopt 100 sandboxes of a server that was killed.
pub(super) async fn adoption(data: &Data, config: &Config) -> Result<Row, Error> {
    progress("adoption");
    let mut samples = Samples::default();
    for _ in 0..3 {
        let mut server = Command::new("/proc/self/exe")
            .args(["bench", "--victim"])
            .arg(data.path())
            .env("ATOLL_DATA_DIR", &config.data)
            .stdout(Stdio::piped())
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| failed("start a server", &error))?;
        let mut line = String::new();
        if let Some(stdout) = server.stdout.take() {
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        let killed = server.kill().and_then(|()| server.wait());
        killed.map_err(|error| failed("kill a server", &error))?;
        let begin = Instant::now();
        let runtime = LocalRuntime::open(data.without_pools(config)).await?;
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

/// A server with 100 sandboxes that runs until it is killed.
pub(in super::super) async fn victim(data: &Path, config: &Config) -> Result<(), Error> {
    let data = Data(data.to_owned());
    let runtime = LocalRuntime::open(data.without_pools(config)).await?;
    for _ in 0..100 {
        create_and_run(&runtime).await?;
    }
    super::super::print_line("ready");
    std::future::pending().await
}

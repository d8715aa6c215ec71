//! Throughput of output, terminal echo, and exec latency beside a noisy neighbour.

use std::time::{Duration, Instant};

use atoll_model::{Code, Error, ExecSpec, OutputChunk, TerminalSize};
use atoll_worker::LocalRuntime;

use super::super::latency::{kilobytes, run_true};
use super::super::{Row, Samples, milliseconds, progress, settle};
use super::create;

/// 1 GB of standard output to one reader, through the log.
pub(super) async fn stream(runtime: &LocalRuntime) -> Result<Row, Error> {
    progress("a stream of 1 GB");
    let id = create(runtime).await?;
    let before = resident();
    let begin = Instant::now();
    let line = "head -c 1000000000 /dev/zero";
    let control = runtime.exec(&id, ExecSpec::shell(line)).await?.handle;
    let mut reader = control.output(0);
    let mut received = 0;
    while let Some(chunk) = reader.next().await? {
        match chunk {
            OutputChunk::Data { bytes, .. } => received += bytes.len() as u64,
            OutputChunk::Gap { .. } => return Err(Error::new(Code::Internal, "a gap")),
            OutputChunk::Exit(_) => break,
        }
    }
    let rate = received as f64 / 1e6 / begin.elapsed().as_secs_f64();
    let grown = resident().saturating_sub(before) / 1024;
    runtime.delete(&id).await?;
    let text = format!("1 GB of stdout to one reader (our memory grew by {grown} MB)");
    let met = rate >= 400.0 && received == 1_000_000_000 && grown < 64;
    Ok(Row::value(text, format!("{rate:.0} MB/s")).bar("≥ 400 MB/s", met))
}

fn resident() -> u64 {
    kilobytes("/proc/self/status", "VmRSS:")
}

pub(super) async fn echo(runtime: &LocalRuntime) -> Result<Row, Error> {
    progress("terminal echo");
    let id = create(runtime).await?;
    let spec = ExecSpec::argv(["/bin/cat"]).terminal(TerminalSize::default());
    let control = runtime.exec(&id, spec).await?.handle;
    let mut output = control.output(0);
    let mut samples = Samples::default();
    for _ in 0..500 {
        let begin = Instant::now();
        control.write_stdin(b"x").await?;
        match output.next().await? {
            Some(OutputChunk::Data { .. }) => samples.add(begin),
            other => return Err(Error::new(Code::Internal, format!("{other:?}"))),
        }
    }
    runtime.delete(&id).await?;
    Ok(Row::times("terminal echo", &samples, Some((0.5, None))))
}

/// Exec latency in one sandbox while another uses all that its limits permit.
pub(super) async fn neighbour(runtime: &LocalRuntime) -> Result<Row, Error> {
    progress("a bad neighbour");
    let (quiet_id, noisy_id) = (create(runtime).await?, create(runtime).await?);
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
    let mut exec = runtime.exec(&noisy_id, ExecSpec::shell(line)).await?;
    exec.stdout.read(&mut [0; 16]).await?;
    // After 2 s of processor time the neighbour has reached its limits.
    while runtime.usage(&noisy_id)?.cpu < Duration::from_secs(2) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let loud = commands().await?;
    runtime.delete(&noisy_id).await?;
    runtime.delete(&quiet_id).await?;
    let (before, after) = (quiet.percentile(99.0), loud.percentile(99.0));
    let ratio = after.as_secs_f64() / before.as_secs_f64();
    let text = format!(
        "exec beside a neighbour that spins, forks and writes, p99 {:.1} ms quiet",
        milliseconds(before)
    );
    let row = Row::times(text, &loud, None);
    Ok(row.bar(format!("p99 ≤ 5 × quiet ({ratio:.1} ×)"), ratio <= 5.0))
}

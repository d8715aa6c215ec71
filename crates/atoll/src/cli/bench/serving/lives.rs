//! Create, pause, resume and delete with full pools.

use std::time::{Duration, Instant};

use atoll_model::{Error, ExecSpec, HostMount, Network, SandboxSpec};
use atoll_worker::LocalRuntime;

use super::super::latency::run_true;
use super::super::{Row, Samples, milliseconds, progress, settle};
use super::{create, create_and_run, flatten_join, wait_for_pools};

pub(super) async fn warm(runtime: &LocalRuntime) -> Result<Row, Error> {
    progress("warm starts");
    let mut samples = Samples::default();
    for _ in 0..200 {
        if runtime.pool_sizes().0 < 4 {
            wait_for_pools(runtime, 16, 96).await?;
        }
        let begin = Instant::now();
        let id = create_and_run(runtime).await?;
        samples.add(begin);
        runtime.delete(&id).await?;
    }
    let row = "create → first exec result, warm (pool of 16, filled again and again)";
    Ok(Row::times(row, &samples, Some((2.0, Some(5.0)))))
}

/// Creates that no warm sandbox fits, after idle gaps.
pub(super) async fn embryos(runtime: &LocalRuntime) -> Result<Row, Error> {
    progress("starts from embryos");
    let mut samples = Samples::default();
    // Warm sandboxes have no mounts of the host.
    let spec = SandboxSpec {
        mounts: vec![HostMount {
            source: "/usr".into(),
            target: "/mnt".into(),
        }],
        ..SandboxSpec::default()
    };
    for _ in 0..60 {
        wait_for_pools(runtime, 0, 8).await?;
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

pub(super) async fn burst(runtime: &LocalRuntime) -> Result<Row, Error> {
    progress("100 at once");
    let mut samples = Samples::default();
    for _ in 0..3 {
        wait_for_pools(runtime, 16, 96).await?;
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
            let (id, elapsed) = flatten_join(one.await)?;
            samples.0.push(elapsed);
            runtime.delete(&id).await?;
        }
    }
    let p99 = milliseconds(samples.percentile(99.0));
    let row = Row::times("100 at once, to the first exec result", &samples, None);
    Ok(row.bar("p99 ≤ 250", p99 <= 250.0))
}

pub(super) async fn sustained(
    runtime: &LocalRuntime,
    network: Network,
    bar: f64,
) -> Result<Row, Error> {
    progress(&format!("create + delete with a pool, network {network}"));
    const LENGTH: Duration = Duration::from_secs(5);
    wait_for_pools(runtime, 16, 96).await?;
    let begin = Instant::now();
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let runtime = runtime.clone();
            tokio::spawn(async move {
                let mut count = 0_u32;
                while begin.elapsed() < LENGTH {
                    let spec = SandboxSpec {
                        network,
                        ..SandboxSpec::default()
                    };
                    let id = runtime.create(spec).await?.id;
                    runtime.delete(&id).await?;
                    count += 1;
                }
                Ok::<_, Error>(count)
            })
        })
        .collect();
    let mut total = 0;
    for caller in callers {
        total += flatten_join(caller.await)?;
    }
    let rate = f64::from(total) / begin.elapsed().as_secs_f64();
    let text = format!("create + delete, sustained, network {network}");
    let row = Row::value(text, format!("{rate:.0} /s"));
    Ok(row.bar(format!("≥ {bar} /s"), rate >= bar))
}

pub(super) async fn pauses(runtime: &LocalRuntime) -> Result<Vec<Row>, Error> {
    progress("pause and resume");
    let mut rows = Vec::new();
    for (load, line) in [
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
            let row = Row::times(format!("{verb}, 20 processes {load}"), &samples, None);
            rows.push(row.bar("p99 ≤ 3", p99 <= 3.0));
        }
        runtime.delete(&id).await?;
    }
    Ok(rows)
}

pub(super) async fn deletes(runtime: &LocalRuntime) -> Result<Vec<Row>, Error> {
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

//! Other isolation programs, each running `/bin/true` with usual options. Atoll is measured in turn with each of them,
//! because the speed of a machine can change by a factor of two within seconds.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use atoll_model::{Code, Error};
use atoll_worker::LocalRuntime;

use super::latency::Stages;
use super::{Row, Samples, failed, progress};
use crate::config::Config;

/// Creates of Atoll after each run of a peer.
const CREATES_PER_RUN: u32 = 4;

/// Measures the peers that are installed.
pub(super) async fn measure(config: &Config, runtime: &LocalRuntime) -> Result<Vec<Row>, Error> {
    let layer = config.templates().join("base/layer");
    let scratch = config.data.join(format!("bench-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)
        .map_err(|error| failed("make a scratch directory", &error))?;
    let rows = all(&layer, &scratch, runtime).await;
    // Podman bind-mounts its store on itself and leaves the mount.
    let _ = Command::new("umount")
        .arg(scratch.join("podman/overlay"))
        .stderr(Stdio::null())
        .status();
    let _ = std::fs::remove_dir_all(&scratch);
    rows
}

async fn all(layer: &Path, scratch: &Path, runtime: &LocalRuntime) -> Result<Vec<Row>, Error> {
    let layer = layer.display();
    let mut rows = Vec::new();
    let mut bwrap = Command::new("bwrap");
    bwrap
        .args(["--unshare-all", "--ro-bind"])
        .arg(layer.to_string())
        .arg("/");
    bwrap.args(["--proc", "/proc", "--dev", "/dev", "/bin/true"]);
    rows.push(peer("bwrap --unshare-all", repeat(&bwrap), 60, runtime, None).await?);

    let config = runc_config(&layer.to_string(), scratch)?;
    let mut number = 0;
    let runc = move || {
        number += 1;
        let mut command = Command::new("runc");
        command.args(["run", "--bundle"]).arg(&config);
        command.arg(format!("atoll-bench-{}-{number}", std::process::id()));
        command
    };
    rows.push(peer("runc run", runc, 40, runtime, Some(3.0)).await?);

    let mut podman = Command::new("podman");
    podman
        .arg("--root")
        .arg(scratch.join("podman"))
        .arg("--runroot")
        .arg(scratch.join("podman-run"));
    podman.args([
        "--cgroup-manager",
        "cgroupfs",
        "run",
        "--rm",
        // By default Podman raises these limits, which needs CAP_SYS_RESOURCE.
        "--ulimit",
        "nofile=1024:1024",
        "--ulimit",
        "nproc=1024:1024",
        "--network",
        "none",
        "--rootfs",
    ]);
    podman.arg(format!("{layer}:O")).arg("/bin/true");
    rows.push(peer("podman run", repeat(&podman), 20, runtime, Some(30.0)).await?);
    Ok(rows)
}

/// Returns copies of a command.
fn repeat(command: &Command) -> impl FnMut() -> Command {
    let (program, arguments) = (command.get_program(), command.get_args());
    let words: Vec<_> = arguments.map(ToOwned::to_owned).collect();
    let program = program.to_owned();
    move || {
        let mut copy = Command::new(&program);
        copy.args(&words);
        copy
    }
}

async fn peer(
    name: &str,
    mut command: impl FnMut() -> Command,
    runs: u32,
    runtime: &LocalRuntime,
    bar: Option<f64>,
) -> Result<Row, Error> {
    progress(name);
    let (mut samples, mut own) = (Samples::default(), Stages::default());
    for _ in 0..runs {
        let begin = Instant::now();
        let done = command().stdin(Stdio::null()).output();
        let done = match done {
            Ok(done) => done,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Row::value(format!("peer: {name}"), "not installed"));
            }
            Err(error) => return Err(failed(name, &error)),
        };
        if !done.status.success() {
            let reason = String::from_utf8_lossy(&done.stderr);
            let reason = reason.lines().last().unwrap_or_default().to_owned();
            return Ok(Row::value(
                format!("peer: {name} failed: {reason}"),
                "failed",
            ));
        }
        samples.add(begin);
        for _ in 0..CREATES_PER_RUN {
            own.measure_create(runtime).await?;
        }
    }
    let own = own.all.percentile(50.0).as_secs_f64();
    let ratio = samples.percentile(50.0).as_secs_f64() / own;
    let row = Row::times(
        format!(
            "peer: {name}, {ratio:.1} × our create → exec ({:.2} ms in turn)",
            own * 1000.0
        ),
        &samples,
        None,
    );
    Ok(match bar {
        Some(bar) => row.bar(format!("≥ {bar} × ours"), ratio >= bar),
        None => row,
    })
}

/// A bundle with runc's default configuration and the template `base` as its root.
fn runc_config(layer: &str, scratch: &Path) -> Result<std::path::PathBuf, Error> {
    let bundle = scratch.join("bundle");
    std::fs::create_dir_all(&bundle).map_err(|error| failed("make a bundle", &error))?;
    let generated = Command::new("runc")
        .arg("spec")
        .current_dir(&bundle)
        .output();
    if generated.is_err() {
        return Ok(bundle);
    }
    let path = bundle.join("config.json");
    let text = std::fs::read(&path).map_err(|error| failed("read runc's spec", &error))?;
    let mut spec: serde_json::Value = serde_json::from_slice(&text)
        .map_err(|error| Error::new(Code::Internal, error.to_string()))?;
    spec["root"] = serde_json::json!({ "path": layer, "readonly": true });
    spec["process"]["args"] = serde_json::json!(["/bin/true"]);
    spec["process"]["terminal"] = serde_json::json!(false);
    std::fs::write(&path, spec.to_string()).map_err(|error| failed("write runc's spec", &error))?;
    Ok(bundle)
}

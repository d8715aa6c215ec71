//! Real work inside a sandbox against the same on the host, turn by turn on one fresh file system.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use atoll_model::{Code, Error, ExecSpec, HostMount, RunAs, SandboxId, SandboxSpec, WriteOptions};
use atoll_worker::{Config as RuntimeConfig, LocalRuntime, Storage};

use super::{Row, Samples, failed, progress};
use crate::config::Config;

const ROUNDS: usize = 5;

/// A fresh file system with a runtime on it, all removed at the end. Host and sandboxes work side by
/// side on it: an old file system is slow wherever much was deleted lately, on whichever side that
/// happens to be.
pub(super) struct Place {
    image: PathBuf,
    pub(super) directory: PathBuf,
    runtime: Option<LocalRuntime>,
}

impl Place {
    async fn new(config: &Config, name: &str) -> Result<Self, Error> {
        Self::on(config, name, config.storage_of_run()).await
    }

    /// With sandboxes' files on a storage.
    pub(super) async fn on(config: &Config, name: &str, storage: Storage) -> Result<Self, Error> {
        let stem = format!("bench-{name}-{}", std::process::id());
        let place = Self {
            image: config.data.join(format!("{stem}.ext4")),
            directory: config.data.join(stem),
            runtime: None,
        };
        let made = fs::create_dir_all(&place.directory)
            .and_then(|()| File::create(&place.image)?.set_len(8 << 30));
        made.map_err(|error| failed("make an image", &error))?;
        let (image, at) = (place.image.display(), place.directory.display());
        on_host(
            &config.data,
            &format!("mkfs.ext4 -q -F {image} && mount -o loop {image} {at}"),
        )?;
        place.open(config, storage).await
    }

    /// On the machine's own file system: much data would be written twice through a second one.
    async fn beside(config: &Config, name: &str) -> Result<Self, Error> {
        let stem = format!("bench-{name}-{}", std::process::id());
        let place = Self {
            image: config.data.join(format!("{stem}.ext4")),
            directory: config.data.join(stem),
            runtime: None,
        };
        let made = fs::create_dir_all(&place.directory);
        made.map_err(|error| failed("make a directory", &error))?;
        place.open(config, config.storage_of_run()).await
    }

    async fn open(mut self, config: &Config, storage: Storage) -> Result<Self, Error> {
        let data = self.directory.join("data");
        let runtime = LocalRuntime::open(RuntimeConfig {
            templates: config.templates(),
            storage,
            ..RuntimeConfig::new(data)
        });
        self.runtime = Some(runtime.await?);
        Ok(self)
    }

    pub(super) fn runtime(&self) -> Result<&LocalRuntime, Error> {
        let runtime = self.runtime.as_ref();
        runtime.ok_or_else(|| Error::new(Code::Internal, "the runtime was closed"))
    }

    pub(super) async fn close(mut self) -> Result<(), Error> {
        match self.runtime.take() {
            Some(runtime) => runtime.close().await,
            None => Ok(()),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Detached, should something of a failed run still be on it.
        let _ = Command::new("umount")
            .arg("--lazy")
            .arg(&self.directory)
            .stderr(std::process::Stdio::null())
            .status();
        let _ = fs::remove_dir_all(&self.directory);
        let _ = fs::remove_file(&self.image);
    }
}

/// The sandbox's speed as a part of the host's: the median of what the rounds say, each of which has both side by side. A
/// machine is faster in one minute than in the next, by more than what is looked for here.
pub(super) fn compare(figure: &str, inside: &Samples, host: &Samples, bar: f64) -> Row {
    let median = |samples: &Samples| samples.percentile(50.0).as_secs_f64();
    let pairs = inside.0.iter().zip(&host.0);
    let mut ratios: Vec<f64> = pairs
        .map(|(inside, host)| host.as_secs_f64() / inside.as_secs_f64())
        .collect();
    ratios.sort_by(f64::total_cmp);
    let ratio = ratios.get(ratios.len() / 2).copied().unwrap_or_default();
    let text = format!(
        "{figure}: {:.2} s inside, {:.2} s on the host",
        median(inside),
        median(host)
    );
    Row::value(text, format!("{ratio:.2} of host")).bar(format!("≥ {bar} of host"), ratio >= bar)
}

pub(super) async fn inside(
    runtime: &LocalRuntime,
    id: &SandboxId,
    line: &str,
) -> Result<(), Error> {
    let exec = runtime.exec(id, ExecSpec::shell(line)).await?;
    let done = exec.finish(&[], 4096).await?;
    if done.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&done.stderr).into_owned();
    Err(Error::new(
        Code::Internal,
        format!("{line}: exit {}: {why}", done.status.exit_code()),
    ))
}

pub(super) fn on_host(directory: &Path, line: &str) -> Result<(), Error> {
    let done = Command::new("/bin/sh")
        .args(["-c", line])
        .current_dir(directory)
        .output();
    let done = done.map_err(|error| failed(line, &error))?;
    if done.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&done.stderr).into_owned();
    Err(Error::new(
        Code::Internal,
        format!("{line}: {}: {why}", done.status),
    ))
}

pub(super) async fn sandbox(runtime: &LocalRuntime, source: &Path) -> Result<SandboxId, Error> {
    let mounts = vec![HostMount {
        source: source.into(),
        target: "/source".into(),
    }];
    Ok(runtime
        .create(SandboxSpec {
            mounts,
            ..SandboxSpec::default()
        })
        .await?
        .id)
}

/// A C project of forty files, compiled one by one and linked.
pub(super) async fn build(config: &Config) -> Result<Row, Error> {
    const FILES: usize = 40;
    const TURN: usize = 4;
    progress("a C build");
    let place = Place::new(config, "build").await?;
    let runtime = place.runtime()?;
    let source = place.directory.join("source");
    fs::create_dir(&source).map_err(|error| failed("make sources", &error))?;
    for number in 0..FILES {
        let mut text = String::from(
            "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <math.h>\n",
        );
        for function in 0..12 {
            let _ = writeln!(
                text,
                "double f{number}_{function}(double x, int n) {{ double s = {function}; for (int i = 0; i < n; i++) {{ \
                 s += x * i + s / (i + 1.5); if (s > 1e9) s = s / {number}.5; }} char b[64]; snprintf(b, sizeof b, \"%f\", s); \
                 return s + strlen(b); }}"
            );
        }
        if number == 0 {
            text.push_str("int main(void) { return f0_1(1.0, 10) > 1e12; }\n");
        }
        let path = source.join(format!("f{number}.c"));
        fs::write(&path, text).map_err(|error| failed("write sources", &error))?;
    }
    // Both builds go forward in turns of a few files: what slows the machine down for a second slows both.
    let turns = |from: &str, to: &str| {
        let mut lines = vec![format!("rm -rf {to} && mkdir {to}")];
        lines.extend((0..FILES).step_by(TURN).map(|first| {
            let files: Vec<String> = (first..first + TURN).map(|file| file.to_string()).collect();
            format!(
                "for f in {}; do gcc -O2 -c {from}/f$f.c -o {to}/f$f.o || exit 1; done",
                files.join(" ")
            )
        }));
        lines.push(format!("gcc {to}/*.o -o {to}/all -lm"));
        lines
    };
    let id = sandbox(runtime, &source).await?;
    let (mut there, mut here) = (Samples::default(), Samples::default());
    // What is compared here is nearly the same, so it takes more of them.
    for _ in 0..2 * ROUNDS - 1 {
        let (mut took_there, mut took_here) = (Duration::ZERO, Duration::ZERO);
        let pairs = turns("/source", "/home/user/out").into_iter();
        for (line_there, line_here) in pairs.zip(turns("source", "out")) {
            let begin = Instant::now();
            inside(runtime, &id, &line_there).await?;
            took_there += begin.elapsed();
            let begin = Instant::now();
            on_host(&place.directory, &line_here)?;
            took_here += begin.elapsed();
        }
        there.0.push(took_there);
        here.0.push(took_here);
    }
    place.close().await?;
    Ok(compare("C build, 40 files", &there, &here, 0.95))
}

/// Makes a repository `source` of 1,500 small files.
pub(super) const REPOSITORY: &str = "git init -q source && cd source && for d in $(seq 30); do mkdir d$d; for f in $(seq 50); do \
                echo \"file $f of directory $d\" > d$d/f$f.txt; done; done && git add . && \
                git -c user.name=bench -c user.email=bench@example.org commit -qm files";

/// A clone of a repository with 1,500 small files.
pub(super) async fn clone(config: &Config) -> Result<Row, Error> {
    progress("a git clone");
    let place = Place::new(config, "clone").await?;
    let runtime = place.runtime()?;
    on_host(&place.directory, REPOSITORY)?;
    let source = place.directory.join("source");
    let line = |from: &str, to: &str| {
        format!("rm -rf {to} && git -c safe.directory='*' clone -q file://{from} {to}")
    };
    let safe = "git config --global --add safe.directory '*'";
    let id = sandbox(runtime, &source).await?;
    inside(runtime, &id, safe).await?;
    let (mut there, mut here) = (Samples::default(), Samples::default());
    for _ in 0..ROUNDS * 3 {
        inside(runtime, &id, "rm -rf /home/user/work").await?;
        let begin = Instant::now();
        inside(runtime, &id, &line("/source", "/home/user/work")).await?;
        there.add(begin);
        on_host(&place.directory, "rm -rf work")?;
        let begin = Instant::now();
        on_host(
            &place.directory,
            &line(&source.display().to_string(), "work"),
        )?;
        here.add(begin);
    }
    place.close().await?;
    Ok(compare("git clone, 1,500 files", &there, &here, 0.6))
}

/// A file whose pages fill the memory that is free, until it is dropped.
///
/// A virtual machine gives back what it frees, and gets it again page by page: the same `cp` then takes a third of a second or
/// three. On a machine whose memory is full of files, as it is after some days, there is next to nothing to give back.
pub(super) struct Filler {
    path: PathBuf,
    size: u64,
}

impl Filler {
    pub(super) fn new(directory: &Path) -> Self {
        Self {
            path: directory.join("filler"),
            size: 0,
        }
    }

    /// Makes a large copy's place free, and fills the memory that it had.
    pub(super) fn free(&mut self, copy: &Path) -> Result<(), Error> {
        const LEFT: u64 = 256 << 20;
        let _ = fs::remove_file(copy);
        rustix::fs::sync();
        let free = super::latency::kilobytes("/proc/meminfo", "MemFree:") << 10;
        let more = free.saturating_sub(LEFT);
        let filled = || {
            let options = File::options()
                .create(true)
                .append(true)
                .read(true)
                .open(&self.path);
            let mut file = options?;
            file.set_len(self.size + more)?;
            file.seek(SeekFrom::Start(self.size))?;
            std::io::copy(&mut file, &mut std::io::sink())
        };
        filled().map_err(|error| failed("fill the memory", &error))?;
        self.size += more;
        Ok(())
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A file of 1 GB in and out against `cp`.
pub(super) async fn transfer(config: &Config) -> Result<Vec<Row>, Error> {
    progress("a file of 1 GB");
    let place = Place::beside(config, "transfer").await?;
    let runtime = place.runtime()?;
    on_host(&place.directory, "head -c 1000000000 /dev/urandom > big")?;
    let big = place.directory.join("big");
    let mut filler = Filler::new(&place.directory);
    let (mut copy, mut there, mut back) =
        (Samples::default(), Samples::default(), Samples::default());
    let caller = RunAs::default();
    let open = |path: &Path| File::open(path).map_err(|error| failed("open the file", &error));
    for _ in 0..3 {
        // A sandbox each time: what was written before must not slow down what comes after.
        let id = runtime.create(SandboxSpec::default()).await?.id;
        filler.free(&place.directory.join("copy"))?;
        let begin = Instant::now();
        on_host(&place.directory, "cp big copy")?;
        copy.add(begin);
        filler.free(&place.directory.join("copy"))?;
        let begin = Instant::now();
        let mut writer = runtime
            .write_file(&id, &caller, b"big", WriteOptions::default())
            .await?;
        writer.splice_from(open(&big)?).await?;
        writer.commit().await?;
        there.add(begin);
        filler.free(&place.directory.join("back"))?;
        let begin = Instant::now();
        let reader = runtime.read_file(&id, &caller, b"big").await?;
        let file = File::create(place.directory.join("back"))
            .map_err(|error| failed("make a file", &error))?;
        reader.splice_to(file).await?;
        back.add(begin);
        on_host(&place.directory, "cmp big back && rm -f back")?;
        runtime.delete(&id).await?;
    }
    drop(filler);
    place.close().await?;
    Ok(vec![
        compare("1 GB in, against cp", &there, &copy, 0.5),
        compare("1 GB out, against cp", &back, &copy, 0.5),
    ])
}

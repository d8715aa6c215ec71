//! Compares real work in a sandbox with the same on the host, in turns on one new file system.

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

/// A new file system with a runtime on it; both are removed on drop. Host and sandboxes work on the
/// same one, because a file system is slow for a while after many files were deleted from it.
pub(super) struct Workspace {
    image: PathBuf,
    pub(super) directory: PathBuf,
    runtime: Option<LocalRuntime>,
}

impl Workspace {
    async fn new(config: &Config, name: &str) -> Result<Self, Error> {
        Self::on(config, name, config.storage_of_run()).await
    }

    /// A workspace whose sandboxes use `storage`.
    pub(super) async fn on(config: &Config, name: &str, storage: Storage) -> Result<Self, Error> {
        let stem = format!("bench-{name}-{}", std::process::id());
        let workspace = Self {
            image: config.data.join(format!("{stem}.ext4")),
            directory: config.data.join(stem),
            runtime: None,
        };
        let created = fs::create_dir_all(&workspace.directory)
            .and_then(|()| File::create(&workspace.image)?.set_len(8 << 30));
        created.map_err(|error| failed("make an image", &error))?;
        let (image, at) = (workspace.image.display(), workspace.directory.display());
        on_host(
            &config.data,
            &format!("mkfs.ext4 -q -F {image} && mount -o loop {image} {at}"),
        )?;
        workspace.open(config, storage).await
    }

    /// A workspace on the file system of the data directory: a loop device would write large files twice.
    async fn beside(config: &Config, name: &str) -> Result<Self, Error> {
        let stem = format!("bench-{name}-{}", std::process::id());
        let workspace = Self {
            image: config.data.join(format!("{stem}.ext4")),
            directory: config.data.join(stem),
            runtime: None,
        };
        let created = fs::create_dir_all(&workspace.directory);
        created.map_err(|error| failed("make a directory", &error))?;
        workspace.open(config, config.storage_of_run()).await
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

impl Drop for Workspace {
    fn drop(&mut self) {
        // Lazily: after a failed run files may still be open.
        let _ = Command::new("umount")
            .arg("--lazy")
            .arg(&self.directory)
            .stderr(std::process::Stdio::null())
            .status();
        let _ = fs::remove_dir_all(&self.directory);
        let _ = fs::remove_file(&self.image);
    }
}

/// Speed of the sandbox relative to the host: the median over rounds of the ratio within a round. The speed of a machine
/// varies between minutes by more than the difference that is measured.
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
    let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
    Err(Error::new(
        Code::Internal,
        format!("{line}: exit {}: {stderr}", done.status.exit_code()),
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
    let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
    Err(Error::new(
        Code::Internal,
        format!("{line}: {}: {stderr}", done.status),
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
    const FILES_PER_TURN: usize = 4;
    progress("a C build");
    let workspace = Workspace::new(config, "build").await?;
    let runtime = workspace.runtime()?;
    let source = workspace.directory.join("source");
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
    // Both builds advance in turns of a few files, so that a short slowdown of the machine affects both.
    let turns = |from: &str, to: &str| {
        let mut lines = vec![format!("rm -rf {to} && mkdir {to}")];
        lines.extend((0..FILES).step_by(FILES_PER_TURN).map(|first| {
            let files: Vec<String> = (first..first + FILES_PER_TURN)
                .map(|file| file.to_string())
                .collect();
            format!(
                "for f in {}; do gcc -O2 -c {from}/f$f.c -o {to}/f$f.o || exit 1; done",
                files.join(" ")
            )
        }));
        lines.push(format!("gcc {to}/*.o -o {to}/all -lm"));
        lines
    };
    let id = sandbox(runtime, &source).await?;
    let (mut sandboxed, mut host) = (Samples::default(), Samples::default());
    // The difference is small, so more rounds are needed.
    for _ in 0..2 * ROUNDS - 1 {
        let (mut sandbox_time, mut host_time) = (Duration::ZERO, Duration::ZERO);
        let pairs = turns("/source", "/home/user/out").into_iter();
        for (sandbox_line, host_line) in pairs.zip(turns("source", "out")) {
            let begin = Instant::now();
            inside(runtime, &id, &sandbox_line).await?;
            sandbox_time += begin.elapsed();
            let begin = Instant::now();
            on_host(&workspace.directory, &host_line)?;
            host_time += begin.elapsed();
        }
        sandboxed.0.push(sandbox_time);
        host.0.push(host_time);
    }
    workspace.close().await?;
    Ok(compare("C build, 40 files", &sandboxed, &host, 0.95))
}

/// Makes a repository `source` of 1,500 small files.
pub(super) const REPOSITORY: &str = "git init -q source && cd source && for d in $(seq 30); do mkdir d$d; for f in $(seq 50); do \
                echo \"file $f of directory $d\" > d$d/f$f.txt; done; done && git add . && \
                git -c user.name=bench -c user.email=bench@example.org commit -qm files";

/// A clone of a repository with 1,500 small files.
pub(super) async fn clone(config: &Config) -> Result<Row, Error> {
    progress("a git clone");
    let workspace = Workspace::new(config, "clone").await?;
    let runtime = workspace.runtime()?;
    on_host(&workspace.directory, REPOSITORY)?;
    let source = workspace.directory.join("source");
    let line = |from: &str, to: &str| {
        format!("rm -rf {to} && git -c safe.directory='*' clone -q file://{from} {to}")
    };
    let safe = "git config --global --add safe.directory '*'";
    let id = sandbox(runtime, &source).await?;
    inside(runtime, &id, safe).await?;
    let (mut sandboxed, mut host) = (Samples::default(), Samples::default());
    for _ in 0..ROUNDS * 3 {
        inside(runtime, &id, "rm -rf /home/user/work").await?;
        let begin = Instant::now();
        inside(runtime, &id, &line("/source", "/home/user/work")).await?;
        sandboxed.add(begin);
        on_host(&workspace.directory, "rm -rf work")?;
        let begin = Instant::now();
        on_host(
            &workspace.directory,
            &line(&source.display().to_string(), "work"),
        )?;
        host.add(begin);
    }
    workspace.close().await?;
    Ok(compare("git clone, 1,500 files", &sandboxed, &host, 0.6))
}

/// A file that fills free memory with page cache; removed on drop.
///
/// A virtual machine with a balloon returns free memory to its host and gets it back page by page: the same `cp` takes 0.3 s
/// or 3 s. A machine that has run for days has little free memory, because the page cache uses it.
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

    /// Removes a large copy, and fills the memory that its pages used.
    pub(super) fn free(&mut self, copy: &Path) -> Result<(), Error> {
        const REMAINING_BYTES: u64 = 256 << 20;
        let _ = fs::remove_file(copy);
        rustix::fs::sync();
        let free = super::latency::kilobytes("/proc/meminfo", "MemFree:") << 10;
        let more = free.saturating_sub(REMAINING_BYTES);
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

/// A file of 1 GB into a sandbox and back, compared with `cp`.
pub(super) async fn transfer(config: &Config) -> Result<Vec<Row>, Error> {
    progress("a file of 1 GB");
    let workspace = Workspace::beside(config, "transfer").await?;
    let runtime = workspace.runtime()?;
    on_host(
        &workspace.directory,
        "head -c 1000000000 /dev/urandom > big",
    )?;
    let big = workspace.directory.join("big");
    let mut filler = Filler::new(&workspace.directory);
    let (mut copy, mut upload, mut download) =
        (Samples::default(), Samples::default(), Samples::default());
    let caller = RunAs::default();
    let open = |path: &Path| File::open(path).map_err(|error| failed("open the file", &error));
    for _ in 0..3 {
        // A new sandbox per round: earlier writes must not slow down later ones.
        let id = runtime.create(SandboxSpec::default()).await?.id;
        filler.free(&workspace.directory.join("copy"))?;
        let begin = Instant::now();
        on_host(&workspace.directory, "cp big copy")?;
        copy.add(begin);
        filler.free(&workspace.directory.join("copy"))?;
        let begin = Instant::now();
        let mut writer = runtime
            .write_file(&id, &caller, b"big", WriteOptions::default())
            .await?;
        writer.splice_from(open(&big)?).await?;
        writer.commit().await?;
        upload.add(begin);
        filler.free(&workspace.directory.join("back"))?;
        let begin = Instant::now();
        let reader = runtime.read_file(&id, &caller, b"big").await?;
        let file = File::create(workspace.directory.join("back"))
            .map_err(|error| failed("make a file", &error))?;
        reader.splice_to(file).await?;
        download.add(begin);
        on_host(&workspace.directory, "cmp big back && rm -f back")?;
        runtime.delete(&id).await?;
    }
    drop(filler);
    workspace.close().await?;
    Ok(vec![
        compare("1 GB in, against cp", &upload, &copy, 0.5),
        compare("1 GB out, against cp", &download, &copy, 0.5),
    ])
}

//! Named runs: a run outlives the process that started it, and later processes attach to it.
//!
//! ```text
//!           run            killed, left            the command ends
//! (no name) ──▶ attached ───────────────▶ running ─────────────────▶ ended
//!                │    ▲                      │                         │
//!                │    └───────── run ────────┴─────────────────────────┘
//!                └── all was passed on ──▶ (no name)
//! ```
//! Each run is a persistent instance below the data directory, whose lock admits one attached
//! process at a time. A run is deleted when its output and exit code were delivered, or by `atoll
//! rm`.

mod client;

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use atoll_model::{
    Code, EgressException, Error, ExecInfo, ExecSpec, Program, RunName, SandboxInfo, SandboxSpec,
    SandboxState, StopReason,
};
use atoll_worker::instance::named::NamedRun;
use atoll_worker::{
    Config as RuntimeConfig, ExecHandle, LocalRuntime, StartedExec, Storage, network, storage,
};
use base64::Engine as _;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::transfer::Transfer;
use super::{Run, Signals, bring_out, caller, ensure_base, explain, keep};
use crate::cli::server_args::quoted;
use crate::cli::{authorities, eprint_line};
use crate::config::Config;
use client::{Client, Outcome};

pub(crate) use client::is_background_holder;

/// Tag of the command of a run.
const TAG: &str = "run";
/// Timeout for the lock of a run that another process lists or ends.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout for a background process to release a run.
const HANDOVER: Duration = Duration::from_secs(10);
/// Interval between two attempts to lock a run.
const PERIOD: Duration = Duration::from_millis(10);

/// Parameters of a run that neither the sandbox's record nor the command's record contains.
#[derive(Debug, Serialize, Deserialize)]
struct RunParameters {
    sandbox: SandboxSpec,
    download: Vec<Transfer>,
    keep: bool,
    /// Private addresses that the sandbox may reach.
    #[serde(default)]
    egress_allow: Vec<EgressException>,
    /// Digest of the command's environment, which is not stored itself. `None` for runs of earlier
    /// versions.
    #[serde(default)]
    variables: Option<String>,
}

impl RunParameters {
    fn path(place: &NamedRun) -> PathBuf {
        place.directory.join("run.json")
    }

    fn write(&self, place: &NamedRun) -> Result<(), Error> {
        let (path, new) = (Self::path(place), place.directory.join("run.json.new"));
        let text = serde_json::to_vec(self).map_err(std::io::Error::from);
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let written = text
            .and_then(|text| options.open(&new)?.write_all(&text))
            .and_then(|()| std::fs::rename(&new, &path));
        written.map_err(|error| {
            Error::new(Code::Internal, format!("write {}: {error}", path.display()))
        })
    }

    fn read(place: &NamedRun) -> Result<Self, Error> {
        let path = Self::path(place);
        let read = std::fs::read(&path)
            .and_then(|text| serde_json::from_slice(&text).map_err(std::io::Error::from));
        read.map_err(|error| {
            Error::new(Code::Internal, format!("read {}: {error}", path.display()))
                .remedy(format!("remove it: atoll rm {}", place.name))
        })
    }
}

impl Run {
    /// Starts a named run, or attaches to it.
    pub(super) async fn named(&self, name: &RunName, config: &Config) -> Result<u8, Error> {
        let place = NamedRun::new(&config.data, name);
        let spec = self.sandbox();
        let exec = self.exec()?.tag(TAG);
        spec.check_network()?;
        atoll_worker::check_host()?;
        let there = has_begun(&place);
        if !there && !self.begins() {
            return Err(unknown(name));
        }
        if !there {
            for upload in &self.upload {
                upload.check_source()?;
            }
            if self.template == atoll_worker::template::BASE {
                ensure_base(config)?;
            }
        }
        let storage = self
            .disk
            .map_or(config.storage_of_run(), |_| Storage::Image);
        // From here on signals are forwarded to the command.
        let mut signals = Signals::new()?;
        let authorities = authorities::read(&self.ca_file)?;
        let own = Own {
            storage,
            exceptions: &self.egress_allow,
            authorities: &authorities,
        };
        let runtime = open(&place, config, own).await?;
        let done = self
            .attached(&runtime, &place, spec, exec, config, &mut signals)
            .await;
        match done {
            Ok(Outcome::Ended(code)) => runtime.destroy().await.map(|()| code),
            Ok(Outcome::Left(code)) => runtime.close().await.map(|()| code),
            // A run that was not started is removed; a started one remains for another attempt.
            Err(error) => {
                let closed = match find(&runtime) {
                    Some(_) => runtime.close().await,
                    None => runtime.destroy().await,
                };
                Err(closed.err().unwrap_or(error))
            }
        }
    }

    /// Checks that a command can be started.
    fn begins(&self) -> bool {
        self.tty || !self.command.is_empty()
    }

    async fn attached(
        &self,
        runtime: &LocalRuntime,
        place: &NamedRun,
        spec: SandboxSpec,
        exec: ExecSpec,
        config: &Config,
        signals: &mut Signals,
    ) -> Result<Outcome, Error> {
        let (info, exec, parameters, fresh) = match find(runtime) {
            Some((info, control)) => {
                let parameters = RunParameters::read(place)?;
                self.check_same(&place.name, &control.info(), &exec, &spec, &parameters)?;
                (info, control.into_streams(), parameters, false)
            }
            None if self.begins() => {
                let begun = self.begin(runtime, place, spec, exec, signals);
                let (info, exec, parameters) = begun.await?;
                (info, exec, parameters, true)
            }
            None => return Err(unknown(&place.name)),
        };
        let control = exec.handle.clone();
        let client = Client {
            name: &place.name,
            directory: &place.directory,
            fresh,
            repeated: !self.command.is_empty(),
        };
        let status = match client.pass(exec, signals).await? {
            Ok(status) => status,
            Err(code) => return Ok(Outcome::Left(code)),
        };
        if control.is_status_unknown() && info.state == SandboxState::Stopped {
            return Err(lost(place, &info));
        }
        let spec = control.info().spec;
        explain(&status, info.limits, spec.deadline);
        let code = status.exit_code() as u8;
        let downloads = if self.download.is_empty() {
            &parameters.download
        } else {
            &self.download
        };
        let who = caller(spec.user.clone());
        let bringing = bring_out(downloads, runtime, &info.id, &who, code);
        signals.unless(bringing).await?;
        if self.keep || parameters.keep {
            keep(runtime, &info.id, config).await?;
        }
        Ok(Outcome::Ended(code))
    }

    /// Creates the sandbox and starts the command.
    async fn begin(
        &self,
        runtime: &LocalRuntime,
        place: &NamedRun,
        spec: SandboxSpec,
        exec: ExecSpec,
        signals: &mut Signals,
    ) -> Result<(SandboxInfo, StartedExec, RunParameters), Error> {
        // Left by an interrupted start, which was not acknowledged to a user.
        for info in runtime.list() {
            runtime.delete(&info.id).await?;
        }
        let absolute = |transfer: &Transfer| Transfer {
            source: transfer.source.clone(),
            target: std::path::absolute(&transfer.target).map_or_else(
                |_| transfer.target.clone(),
                |path| path.to_string_lossy().into_owned(),
            ),
        };
        let parameters = RunParameters {
            sandbox: spec.clone(),
            // The process that is attached at the end may have another working directory.
            download: self.download.iter().map(absolute).collect(),
            keep: self.keep,
            egress_allow: self.egress_allow.clone(),
            variables: Some(digest(&exec.environment)),
        };
        parameters.write(place)?;
        let info = runtime.create(spec).await?;
        let uploading = async {
            let caller = caller(self.user.clone());
            for upload in &self.upload {
                upload.upload(runtime, &info.id, &caller).await?;
            }
            Ok(())
        };
        signals.unless(uploading).await?;
        let exec = runtime.exec(&info.id, exec).await?;
        Ok((info, exec, parameters))
    }

    /// Returns an error if the arguments differ from those of the existing run.
    fn check_same(
        &self,
        name: &RunName,
        had: &ExecInfo,
        exec: &ExecSpec,
        sandbox: &SandboxSpec,
        parameters: &RunParameters,
    ) -> Result<(), Error> {
        let state = if had.status.is_some() {
            "ended"
        } else {
            "running"
        };
        let refused = |what: &str, with: String| {
            let message = format!("{name} is there already ({state}), with {with}");
            Err(Error::new(Code::Conflict, message)
                .detail("field", what)
                .detail("state", state)
                .remedy(format!(
                    "attach to it: atoll run --name {name}, or remove it: atoll rm {name}"
                )))
        };
        let given = !self.command.is_empty();
        if given && exec.program != had.spec.program {
            return refused(
                "command",
                format!("another command: {}", command(&had.spec)),
            );
        }
        let of = |spec: &ExecSpec| {
            let ExecSpec {
                directory,
                user,
                deadline,
                ..
            } = spec.clone();
            (directory, user, deadline)
        };
        let variables = digest(&exec.environment);
        let same_variables = parameters
            .variables
            .as_ref()
            .is_none_or(|had| *had == variables);
        // Without a command, the arguments need not be repeated.
        let matches = |same: bool, plain: bool| same || (!given && plain);
        let plain = ExecSpec::shell("");
        let same = matches(
            of(exec) == of(&had.spec) && same_variables,
            of(exec) == of(&plain) && exec.environment.is_empty(),
        ) && matches(
            *sandbox == parameters.sandbox && self.egress_allow == parameters.egress_allow,
            *sandbox == SandboxSpec::default() && self.egress_allow.is_empty(),
        ) && (given || self.upload.is_empty());
        if !same {
            return refused("options", "other options".into());
        }
        if self.tty && had.spec.terminal.is_none() {
            return refused("tty", "no terminal".into());
        }
        Ok(())
    }
}

/// Digest of environment variables, to compare them without storing them.
fn digest(variables: &[(Vec<u8>, Vec<u8>)]) -> String {
    let mut digest = Sha256::new();
    for part in variables.iter().flat_map(|(name, value)| [name, value]) {
        // Names and values contain no NUL byte.
        digest.update(part);
        digest.update([0]);
    }
    base64::engine::general_purpose::STANDARD.encode(digest.finalize())
}

/// The sandbox and the command of a started run.
pub(crate) fn find(runtime: &LocalRuntime) -> Option<(SandboxInfo, ExecHandle)> {
    runtime.list().into_iter().find_map(|info| {
        let control = runtime.find_exec_by_tag(&info.id, TAG).ok()?;
        Some((info, control))
    })
}

/// The command of a run in the stored records.
pub(crate) fn find_written(execs: Vec<ExecInfo>) -> Option<ExecInfo> {
    execs
        .into_iter()
        .rev()
        .find(|exec| exec.spec.tag.as_deref() == Some(TAG))
}

/// Formats a command approximately as it was typed.
pub(crate) fn command(spec: &ExecSpec) -> String {
    let word = |word: &Vec<u8>| quoted(&String::from_utf8_lossy(word));
    match &spec.program {
        Program::Argv(words) => words.iter().map(word).collect::<Vec<_>>().join(" "),
        Program::Shell(_) => "(a shell)".into(),
    }
}

/// Options of the instance of a new run. A started run keeps its options.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Own<'a> {
    storage: Storage,
    exceptions: &'a [EgressException],
    authorities: &'a [String],
}

impl From<Storage> for Own<'_> {
    fn from(storage: Storage) -> Self {
        Self {
            storage,
            ..Self::default()
        }
    }
}

/// Whether a run was started.
fn has_begun(place: &NamedRun) -> bool {
    place
        .inspect()
        .is_some_and(|seen| !seen.sandboxes.is_empty())
}

/// Opens the instance of a run as soon as other processes have released it.
pub(crate) async fn open(
    place: &NamedRun,
    config: &Config,
    own: Own<'_>,
) -> Result<LocalRuntime, Error> {
    let begin = Instant::now();
    loop {
        let exceptions = if has_begun(place) {
            RunParameters::read(place)
                .map_or_else(|_| Vec::new(), |parameters| parameters.egress_allow)
        } else {
            own.exceptions.to_vec()
        };
        let opened = LocalRuntime::open(RuntimeConfig {
            persistent: true,
            network: network::Config {
                exceptions: exceptions.into(),
                ..network::Config::default()
            },
            authorities: own.authorities.to_vec(),
            templates: config.templates(),
            // The run does not change.
            storage: storage::recorded_kind(&place.directory).unwrap_or(own.storage),
            ..RuntimeConfig::new(&place.directory)
        });
        let error = match opened.await {
            Err(error) if error.details.contains_key("pid") => error,
            Ok(runtime) => {
                client::clear_holder(&place.directory);
                return Ok(runtime);
            }
            Err(error) => return Err(error),
        };
        let pid = error.details.get("pid").and_then(|pid| pid.parse().ok());
        let leaves = pid.is_some_and(|pid| client::ask_to_leave(&place.directory, pid));
        let limit = if leaves { HANDOVER } else { HANDSHAKE_TIMEOUT };
        if begin.elapsed() >= limit {
            return Err(name_in_use(&place.name, pid));
        }
        tokio::time::sleep(PERIOD).await;
    }
}

fn name_in_use(name: &RunName, pid: Option<i32>) -> Error {
    let who = pid.map_or_else(
        || "another process".to_owned(),
        |pid| format!("process {pid}"),
    );
    let message = format!("{who} is attached to {name}, and only one can be");
    let kill = pid.map_or_else(String::new, |pid| {
        format!("; kill -9 {pid} ends that one and not {name}")
    });
    Error::new(Code::Conflict, message)
        .detail("name", name.as_str())
        .detail("state", "attached")
        .remedy(format!("use it there{kill}"))
}

pub(crate) fn unknown(name: &RunName) -> Error {
    Error::new(
        Code::SandboxNotFound,
        format!("there is no run with the name {name}"),
    )
    .detail("name", name.as_str())
    .remedy(format!(
        "start one: atoll run --name {name} -- CMD; atoll ls shows those that are there"
    ))
}

/// Error for a command whose result is lost.
pub(crate) fn why(reason: Option<StopReason>) -> &'static str {
    match reason {
        Some(StopReason::KeeperLost) => "when its keeper was ended",
        Some(StopReason::Oom) => "when its sandbox ran out of memory",
        Some(StopReason::Exited | StopReason::Timeout | StopReason::Idle) => {
            "when its sandbox ended"
        }
        Some(StopReason::HostRestart) | None => "with the machine's restart",
    }
}

fn lost(place: &NamedRun, info: &SandboxInfo) -> Error {
    let name = &place.name;
    let files = place.directory.join("sandboxes").join(info.id.as_str());
    let message = format!("the command of {name} was lost {}", why(info.reason));
    let at = if files.join("upper").is_dir() {
        format!("what it wrote is in {}; ", files.join("upper").display())
    } else {
        String::new()
    };
    Error::new(Code::SandboxFailed, message)
        .detail("name", name.as_str())
        .detail("state", "lost")
        .remedy(format!("{at}remove it with atoll rm {name}"))
}

/// Prints that a run continues.
fn goes_on(name: &RunName) {
    eprint_line(&format!(
        "atoll: {name} goes on; attach to it with atoll run --name {name}"
    ));
}

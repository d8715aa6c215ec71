//! `atoll run`: runs one command in a new sandbox.

pub(crate) mod named;
mod remote;
mod signals;
mod streams;
pub(crate) mod terminal;
mod transfer;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use atoll_model::{
    Bytes, Code, Cpus, EgressException, Error, ExecSpec, ExecStatus, HostMount, Limits, Network,
    NetworkPolicy, NetworkRule, PolicyAction, Program, RunAs, RunName, SandboxId, SandboxSpec,
    Stdin, parse_duration,
};
use atoll_worker::{Config as RuntimeConfig, LocalRuntime, Storage, instance, network, template};
use clap::Args;

use super::progress::Bar;
use super::server_args::Remote;
use super::template::{store, variables};
use super::{as_command, authorities, block_on, eprint_line, print_error};
use crate::config::Config;
pub(crate) use signals::{Signals, ended_by};
use streams::{copy, feed, on_terminal, stream};
pub(crate) use streams::{pass_on, stdin_is_null};
use transfer::Transfer;

/// Create a sandbox, run a command in it, and delete the sandbox.
///
/// Standard input, output and the exit code are those of the command. Other exit codes: 124, the
/// deadline was reached; 137, the sandbox ran out of memory; 125, Atoll itself failed; 126 and 127,
/// the command cannot be run or was not found.
///
/// With --name the sandbox outlives this process: if this process is killed or loses its terminal,
/// the command continues, and `atoll run --name NAME` attaches to it.
///
/// The sandbox belongs to this process, or to the server that `ATOLL_URL` or `atoll login` selects.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll run -- python3 -c 'print(6*7)'
  echo hello | atoll run -- tr a-z A-Z
  atoll run --memory 512M --cpus 1 --timeout 30s -- make test
  atoll run --disk 1G -- sh -c 'head -c 2G /dev/zero > big'
  atoll run --upload ./project:work --cwd work --download work/out.txt:. -- make
  atoll run --mount /srv/data:/data --user root -- ls -l /data
  atoll run --net internet -- curl -sS https://example.com
  atoll run --net internet --allow 1.1.1.1:443 -- curl -sS https://1.1.1.1
  atoll run --net internet --egress-allow 10.1.2.3:443 --ca-file company.pem -- npm install
  atoll run --name build -- make -j4     outlives this process and its terminal
  atoll run --name build                 attach: all its output, then its exit code
  atoll run -it                          a shell to stay in
  atoll run -it --user root -- vim /etc/hosts")]
pub(crate) struct Run {
    /// Keep the run under this name when this process ends; without a command, attach to the run of
    /// this name.
    #[arg(long)]
    name: Option<RunName>,
    /// Template to start from.
    #[arg(long, default_value = template::BASE, value_name = "NAME")]
    template: String,
    /// CPU limit, in CPUs.
    #[arg(long, default_value = "2", value_name = "N")]
    cpus: Cpus,
    /// Memory limit, including the page cache.
    #[arg(long, default_value = "2G", value_name = "SIZE")]
    memory: Bytes,
    /// Limit of processes and threads.
    #[arg(long, default_value_t = Limits::default().pids, value_name = "N")]
    pids: u32,
    /// Limit of the disk space that the sandbox's changes take; the sandbox's files are stored in
    /// an image file [default: 10G, kept only with `ATOLL_STORAGE=image`].
    #[arg(long, value_name = "SIZE", conflicts_with = "keep")]
    disk: Option<Bytes>,
    /// Kill the command and all processes that it started after this time.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    timeout: Option<Duration>,
    /// Set an environment variable.
    #[arg(long = "env", short = 'e', value_name = "K=V")]
    env: Vec<String>,
    /// Run in this directory of the sandbox [default: the user's home].
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Run as this user of the sandbox: a name, a uid, or uid:gid [default: the template's].
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Copy a file or directory into the sandbox before the command runs.
    #[arg(long, value_name = "SRC:DST")]
    upload: Vec<Transfer>,
    /// Copy a file or directory out of the sandbox after the command has ended.
    #[arg(long, value_name = "SRC:DST")]
    download: Vec<Transfer>,
    /// Mount a file or directory of this machine in the sandbox, read-only.
    #[arg(long, value_name = "SRC:DST")]
    mount: Vec<Transfer>,
    /// Network of the sandbox: `none` is loopback only; `internet` is public addresses, but never
    /// this machine, its networks or other sandboxes.
    #[arg(long, default_value = "none", value_name = "none|internet")]
    net: Network,
    /// Allow connections to these addresses: 1.1.1.1, 1.1.1.0/24, 1.1.1.1:443. Without --deny, all
    /// others are refused.
    #[arg(long, value_name = "RULE")]
    allow: Vec<NetworkRule>,
    /// Refuse connections to these addresses, except those that --allow names.
    #[arg(long, value_name = "RULE")]
    deny: Vec<NetworkRule>,
    /// Allow private addresses that sandboxes cannot reach by default, such as a company's
    /// registry: 10.1.2.3, 10.1.0.0/16, 10.1.2.3:443,8000-8099; may be repeated.
    #[arg(long, value_name = "CIDR[:PORTS]")]
    egress_allow: Vec<EgressException>,
    /// PEM file with certificate authorities that the sandbox trusts in addition to those of its
    /// template; may be repeated.
    #[arg(long, value_name = "FILE")]
    ca_file: Vec<PathBuf>,
    /// Keep the sandbox's files after the command has ended.
    #[arg(long)]
    keep: bool,
    /// Allocate a terminal for the command and connect it to this one.
    #[arg(long, short = 't')]
    tty: bool,
    /// No effect: standard input is always connected. Accepted so that `-it` works.
    #[arg(long, short = 'i', hide = true)]
    interactive: bool,
    /// Run on this machine, in this process, even if a server is configured.
    #[arg(long, conflicts_with_all = ["url", "profile"])]
    local: bool,
    #[command(flatten)]
    remote: Remote,
    /// The command and its arguments; with a terminal, the default is the user's shell.
    #[arg(required_unless_present_any = ["tty", "name"], trailing_var_arg = true, value_name = "CMD")]
    command: Vec<std::ffi::OsString>,
}

impl Run {
    pub(crate) fn run(self, config: &Config) -> ExitCode {
        let server = if self.local {
            Ok(None)
        } else {
            self.remote.configured(config)
        };
        as_command(server.and_then(|server| match (server, &self.name) {
            (Some(client), _) => block_on(self.run_remote(&client)).map_err(|error| {
                // ATOLL_API_KEY alone selects the server of this machine, which may not be running.
                if error.code == Code::ServerUnreachable && client.target().is_socket() {
                    return error.remedy(
                        "start `atoll serve`; or run without a server: pass --local, or unset ATOLL_API_KEY",
                    );
                }
                error
            }),
            (None, Some(name)) => block_on(self.named(name, config)),
            (None, None) => block_on(self.whole(config)),
        }))
    }

    async fn whole(&self, config: &Config) -> Result<u8, Error> {
        let spec = self.sandbox();
        let exec = self.exec()?;
        spec.check_network()?;
        let authorities = authorities::read(&self.ca_file)?;
        atoll_worker::check_host()?;
        for upload in &self.upload {
            upload.check_source()?;
        }
        if self.template == template::BASE {
            ensure_base(config)?;
        }
        let runtime = LocalRuntime::open(RuntimeConfig {
            network: network::Config {
                exceptions: self.egress_allow.clone().into(),
                ..network::Config::default()
            },
            authorities,
            // An explicit disk limit is enforced.
            storage: self
                .disk
                .map_or(config.storage_of_run(), |_| Storage::Image),
            templates: config.templates(),
            ..RuntimeConfig::new(&config.data)
        })
        .await?;
        let done = self.in_sandbox(&runtime, spec, exec, config).await;
        // The sandbox is deleted in all cases.
        let closed = runtime.close().await;
        let code = done?;
        closed?;
        Ok(code)
    }

    async fn in_sandbox(
        &self,
        runtime: &LocalRuntime,
        spec: SandboxSpec,
        exec: ExecSpec,
        config: &Config,
    ) -> Result<u8, Error> {
        // From here on signals are forwarded to the command; the sandbox must not outlive this
        // process.
        let mut signals = Signals::new()?;
        let limits = spec.limits;
        let id = runtime.create(spec).await?.id;
        let caller = caller(self.user.clone());
        let uploading = async {
            for upload in &self.upload {
                upload.upload(runtime, &id, &caller).await?;
            }
            Ok(())
        };
        signals.unless(uploading).await?;
        let exec = runtime.exec(&id, exec).await?;
        let status = if self.tty {
            on_terminal(&exec.handle, &mut signals).await?
        } else {
            stream(exec, &mut signals).await?
        };
        explain(&status, limits, self.timeout);
        let code = status.exit_code() as u8;
        let bringing = bring_out(&self.download, runtime, &id, &caller, code);
        signals.unless(bringing).await?;
        if self.keep {
            keep(runtime, &id, config).await?;
        }
        Ok(code)
    }

    fn sandbox(&self) -> SandboxSpec {
        let mount = |mount: &Transfer| HostMount {
            source: PathBuf::from(&mount.source),
            target: mount.target.clone(),
        };
        SandboxSpec {
            template: self.template.clone(),
            limits: self.limits(),
            environment: std::collections::BTreeMap::new(),
            mounts: self.mount.iter().map(mount).collect(),
            network: self.net,
            policy: NetworkPolicy {
                default: if self.deny.is_empty() && !self.allow.is_empty() {
                    PolicyAction::Deny
                } else {
                    PolicyAction::Allow
                },
                allow: self.allow.clone(),
                deny: self.deny.clone(),
            },
            durable: false,
            lifetime: None,
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            cpus: self.cpus,
            memory: self.memory,
            pids: self.pids,
            disk: self.disk.unwrap_or(Limits::default().disk),
        }
    }

    fn exec(&self) -> Result<ExecSpec, Error> {
        use std::os::unix::ffi::OsStrExt;
        let words = self.command.iter().map(|word| word.as_bytes().to_vec());
        let program = if self.command.is_empty() {
            Program::Shell("exec \"${SHELL:-/bin/sh}\" -l".into())
        } else {
            Program::Argv(words.collect())
        };
        let terminal = if self.tty {
            Some(terminal::size()?)
        } else {
            None
        };
        let bytes = |(name, value): (String, String)| (name.into_bytes(), value.into_bytes());
        Ok(ExecSpec {
            program,
            environment: variables(&self.env)?.into_iter().map(bytes).collect(),
            directory: self.cwd.clone().map(String::into_bytes),
            user: self.user.clone(),
            stdin: Stdin::Piped,
            deadline: self.timeout,
            tag: None,
            terminal,
            idempotency: None,
        })
    }
}

/// User of file transfers of a run.
fn caller(user: Option<String>) -> RunAs {
    RunAs {
        user,
        ..RunAs::default()
    }
}

/// Prints why a command was killed, if by Atoll or by the kernel's OOM killer.
fn explain(status: &ExecStatus, limits: Limits, deadline: Option<Duration>) {
    if status.oom_killed {
        eprint_line(&format!(
            "atoll: killed: the sandbox ran out of memory ({}); give it more with --memory",
            limits.memory
        ));
    } else if status.timed_out {
        let after = deadline.unwrap_or_default();
        eprint_line(&format!(
            "atoll: killed: the deadline of {after:?} was reached; set another with --timeout"
        ));
    }
}

/// Downloads files after the command has ended.
async fn bring_out(
    downloads: &[Transfer],
    runtime: &LocalRuntime,
    id: &SandboxId,
    caller: &RunAs,
    code: u8,
) -> Result<(), Error> {
    for download in downloads {
        if let Err(error) = download.download(runtime, id, caller).await {
            // The exit code of a failed command takes precedence over errors of downloads.
            if code == 0 {
                return Err(error);
            }
            print_error(&error);
        }
    }
    Ok(())
}

/// Builds `base` at its first use, with a progress bar.
pub(crate) fn ensure_base(config: &Config) -> Result<(), Error> {
    let store = store(config)?;
    let mut bar = Bar::new("making template base from this machine's system (once)");
    let made = store.ensure_base(&mut |progress| bar.show(&progress));
    drop(bar);
    made?;
    Ok(())
}

async fn keep(runtime: &LocalRuntime, id: &SandboxId, config: &Config) -> Result<(), Error> {
    let kept = instance::kept_directory(&config.data);
    let made = std::fs::create_dir_all(&kept);
    made.map_err(|error| Error::new(Code::Internal, format!("make {}: {error}", kept.display())))?;
    let directory = kept.join(id.as_str());
    runtime.export_files(id, directory.clone()).await?;
    eprint_line(&format!(
        "atoll: kept {id}: what it wrote is in {}; remove it with atoll gc --kept",
        directory.join("upper").display()
    ));
    Ok(())
}

//! A sandbox as it is asked for and as it is.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Bytes, Cpus, Error, Network, Policy, SandboxId, SandboxState, StopReason};

/// Ceilings of a sandbox; not reservations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Processor time.
    pub cpus: Cpus,
    /// Memory, page cache and tmpfs included.
    pub memory: Bytes,
    /// Processes and threads.
    pub pids: u32,
    /// Disk space of what it writes. Records from before there was one have the usual.
    #[serde(default = "Limits::usual_disk")]
    pub disk: Bytes,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            cpus: Cpus(2000),
            memory: Bytes(2 << 30),
            pids: 1024,
            disk: Self::usual_disk(),
        }
    }
}

impl Limits {
    /// The most one sandbox may have, unless the operator sets other ceilings.
    pub const MOST: Self = Self {
        cpus: Cpus(4000),
        memory: Bytes(8 << 30),
        pids: 4096,
        disk: Bytes(50 << 30),
    };
    /// The least that can hold a process.
    pub const LEAST: Self = Self {
        cpus: Cpus(50),
        memory: Bytes(16 << 20),
        pids: 8,
        disk: Bytes(16 << 20),
    };

    fn usual_disk() -> Bytes {
        Bytes(10 << 30)
    }

    /// Checks each limit against the ceilings of one sandbox, never above the host's memory. More
    /// processors than the host has are not an error: a ceiling above the roof is no ceiling.
    pub fn check(&self, most: &Self, host_memory: Bytes) -> Result<(), Error> {
        let most_memory = most.memory.min(host_memory);
        let range = |field: &str, given: String, ok: bool, least: String, most: String| {
            if ok {
                return Ok(());
            }
            Err(Error::invalid(
                field,
                format!("{field} {given} is out of range"),
                format!("choose {field} from {least} to {most}, the ceiling of this host"),
            ))
        };
        range(
            "cpus",
            self.cpus.to_string(),
            (Self::LEAST.cpus..=most.cpus).contains(&self.cpus),
            Self::LEAST.cpus.to_string(),
            most.cpus.to_string(),
        )?;
        range(
            "memory",
            self.memory.to_string(),
            (Self::LEAST.memory..=most_memory).contains(&self.memory),
            Self::LEAST.memory.to_string(),
            most_memory.to_string(),
        )?;
        range(
            "pids",
            self.pids.to_string(),
            (Self::LEAST.pids..=most.pids).contains(&self.pids),
            Self::LEAST.pids.to_string(),
            most.pids.to_string(),
        )?;
        range(
            "disk",
            self.disk.to_string(),
            (Self::LEAST.disk..=most.disk).contains(&self.disk),
            Self::LEAST.disk.to_string(),
            most.disk.to_string(),
        )
    }
}

/// What a caller asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// The template's name.
    pub template: String,
    /// Ceilings.
    pub limits: Limits,
    /// Environment of every exec.
    pub environment: BTreeMap<String, String>,
    /// Files and directories of the host, shown read-only.
    pub mounts: Vec<HostMount>,
    /// What it is connected to.
    #[serde(default)]
    pub network: Network,
    /// What it may reach there.
    #[serde(default)]
    pub policy: Policy,
    /// `fsync` inside waits for the disk. Otherwise it returns at once, and a power cut may undo what was written since
    /// the sandbox last stopped.
    #[serde(default)]
    pub durable: bool,
}

impl SandboxSpec {
    /// Refuses a policy that cannot be, and one for a sandbox that reaches nothing anyway: whoever
    /// wrote it hopes for something.
    pub fn check_network(&self) -> Result<(), Error> {
        if self.network == Network::None && self.policy != Policy::default() {
            return Err(Error::invalid(
                "policy",
                "a policy is about the network internet, and this sandbox has none",
                "choose the network internet, or leave the rules out",
            ));
        }
        self.policy.check()
    }
}

impl Default for SandboxSpec {
    fn default() -> Self {
        Self {
            template: "base".into(),
            limits: Limits::default(),
            environment: BTreeMap::new(),
            mounts: Vec::new(),
            network: Network::default(),
            policy: Policy::default(),
            durable: false,
        }
    }
}

/// The credential that a request to a sandbox's port needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortAccess {
    /// A credential: an API key or a ticket of the sandbox's org, or the traffic access token. Without one the
    /// server gives the answer that it gives for an unknown sandbox.
    #[default]
    Private,
    /// The same credentials; a request without one gets 403, as E2B's clients expect.
    Token,
    /// Nothing.
    Public,
}

/// A file or directory of the host shown in a sandbox, read-only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostMount {
    /// Where it is on the host.
    pub source: PathBuf,
    /// Where it appears: an absolute path in the sandbox.
    pub target: String,
}

/// A sandbox as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxInfo {
    /// Its id.
    #[serde(rename = "sandboxID")]
    pub id: SandboxId,
    /// The template it was made from.
    pub template: String,
    /// Where it is in its life.
    pub state: SandboxState,
    /// Why it does not run, if nobody asked for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<StopReason>,
    /// Its ceilings.
    pub limits: Limits,
    /// What it is connected to.
    #[serde(default)]
    pub network: Network,
    /// When it was made: microseconds since 1970.
    pub created_at: i64,
    /// How long each stage of making it took.
    pub timings: Timings,
}

/// How long the stages of a create took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Timings {
    /// Directories, ids and control groups.
    pub slot: Duration,
    /// Cloning PID 1 with its namespaces.
    pub clone: Duration,
    /// Mounting the root, and attaching PID 1 to its limits beside it.
    pub root: Duration,
    /// From the root to the first possible exec.
    pub start: Duration,
}

impl Timings {
    /// All stages together.
    pub fn total(&self) -> Duration {
        self.slot + self.clone + self.root + self.start
    }
}

/// What a sandbox's files take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskUsage {
    /// What it wrote, without its template.
    pub used: Bytes,
    /// How much it may be.
    pub limit: Bytes,
    /// More than that is refused; otherwise the limit is what is expected of it.
    pub enforced: bool,
    /// All of it was measured; otherwise there is more.
    pub complete: bool,
}

/// What a sandbox used at a moment, and might have used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// When: microseconds since 1970.
    pub at: i64,
    /// Processor time until then.
    pub cpu: Duration,
    /// How much of its processors it used since the sample before: 100 is all of them.
    pub cpu_percent: f64,
    /// Memory, without what is only kept of files.
    pub memory: Bytes,
    /// Contents of files that are kept in memory as long as there is room.
    pub cache: Bytes,
    /// What its files took when they were last measured.
    pub disk: Option<Bytes>,
    /// Processes and threads, our own PID 1 included.
    pub pids: u32,
    /// Its ceilings then.
    pub limits: Limits,
}

/// What a sandbox uses now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time so far.
    pub cpu: Duration,
    /// Memory now.
    pub memory: Bytes,
    /// Processes and threads now, our own PID 1 included.
    pub pids: u64,
}

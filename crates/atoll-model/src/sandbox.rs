//! Types for sandboxes: limits, the request of the runtime, state and resource usage.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    Bytes, Cpus, Deadlines, Error, Lifetime, Network, NetworkPolicy, SandboxId, SandboxState,
    StopReason,
};

/// Resource limits of a sandbox. They are not reservations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// CPU time.
    pub cpus: Cpus,
    /// Memory, including page cache and tmpfs.
    pub memory: Bytes,
    /// Number of processes and threads.
    pub pids: u32,
    /// Disk space for written files. Records of versions without this field have the default.
    #[serde(default = "Limits::default_disk")]
    pub disk: Bytes,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            cpus: Cpus(2000),
            memory: Bytes(2 << 30),
            pids: 1024,
            disk: Self::default_disk(),
        }
    }
}

impl Limits {
    /// Maximum limits of one sandbox, unless the operator configures others.
    pub const MAX: Self = Self {
        cpus: Cpus(4000),
        memory: Bytes(8 << 30),
        pids: 4096,
        disk: Bytes(50 << 30),
    };
    /// Minimum limits with which a sandbox can run a process.
    pub const MIN: Self = Self {
        cpus: Cpus(50),
        memory: Bytes(16 << 20),
        pids: 8,
        disk: Bytes(16 << 20),
    };

    fn default_disk() -> Bytes {
        Bytes(10 << 30)
    }

    /// Checks each limit against the minimum and the configured maximum. Memory must also fit the host. More CPUs than
    /// the host has are allowed: they are no limit.
    pub fn check(&self, max: &Self, host_memory: Bytes) -> Result<(), Error> {
        let max_memory = max.memory.min(host_memory);
        let range = |field: &str, value: String, ok: bool, min: String, max: String| {
            if ok {
                return Ok(());
            }
            Err(Error::invalid(
                field,
                format!("{field} {value} is out of range"),
                format!("choose {field} from {min} to {max}, the ceiling of this host"),
            ))
        };
        range(
            "cpus",
            self.cpus.to_string(),
            (Self::MIN.cpus..=max.cpus).contains(&self.cpus),
            Self::MIN.cpus.to_string(),
            max.cpus.to_string(),
        )?;
        range(
            "memory",
            self.memory.to_string(),
            (Self::MIN.memory..=max_memory).contains(&self.memory),
            Self::MIN.memory.to_string(),
            max_memory.to_string(),
        )?;
        range(
            "pids",
            self.pids.to_string(),
            (Self::MIN.pids..=max.pids).contains(&self.pids),
            Self::MIN.pids.to_string(),
            max.pids.to_string(),
        )?;
        range(
            "disk",
            self.disk.to_string(),
            (Self::MIN.disk..=max.disk).contains(&self.disk),
            Self::MIN.disk.to_string(),
            max.disk.to_string(),
        )
    }
}

/// Request to the runtime to create a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// Template name.
    pub template: String,
    /// Resource limits.
    pub limits: Limits,
    /// Environment variables of every exec.
    pub environment: BTreeMap<String, String>,
    /// Read-only mounts of host files and directories.
    pub mounts: Vec<HostMount>,
    /// Network mode.
    #[serde(default)]
    pub network: Network,
    /// Rules for outgoing connections.
    #[serde(default)]
    pub policy: NetworkPolicy,
    /// Whether `fsync` in the sandbox waits for the disk. Otherwise it returns at once, and a power failure may undo all
    /// writes since the sandbox last stopped.
    #[serde(default)]
    pub durable: bool,
    /// Timeouts that the runtime enforces. `None`: the sandbox does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<Lifetime>,
}

impl SandboxSpec {
    /// Rejects an invalid policy, and a policy for a sandbox without a network, where it would have no effect.
    pub fn check_network(&self) -> Result<(), Error> {
        if self.network == Network::None && self.policy != NetworkPolicy::default() {
            return Err(Error::invalid(
                "policy",
                "a policy needs the network internet, and this sandbox has none",
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
            policy: NetworkPolicy::default(),
            durable: false,
            lifetime: None,
        }
    }
}

/// Credential that a request to a port of a sandbox needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortAccess {
    /// An API key or a ticket of the sandbox's org, or the traffic access token. A request without one gets the same
    /// response as for an unknown sandbox.
    #[default]
    Private,
    /// The same credentials; a request without one gets 403, as E2B's clients expect.
    Token,
    /// None: ports are public.
    Public,
}

/// Read-only mount of a host file or directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostMount {
    /// Path on the host.
    pub source: PathBuf,
    /// Absolute path in the sandbox.
    pub target: String,
}

/// State of a sandbox as the runtime knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxInfo {
    /// Sandbox id.
    #[serde(rename = "sandboxID")]
    pub id: SandboxId,
    /// Name of its template.
    pub template: String,
    /// Lifecycle state.
    pub state: SandboxState,
    /// Why it stopped without a stop request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<StopReason>,
    /// Resource limits.
    pub limits: Limits,
    /// Network mode.
    #[serde(default)]
    pub network: Network,
    /// Creation time in microseconds since 1970.
    pub created_at: i64,
    /// Duration of each stage of its creation.
    pub timings: Timings,
    /// It has expired and is to be deleted. The runtime has stopped it and keeps its files until the control plane deletes
    /// it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaits_deletion: bool,
    /// Deadlines that the runtime enforces. `None` if the sandbox does not expire.
    #[serde(skip)]
    pub deadlines: Option<Deadlines>,
}

/// Durations of the stages of a create.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Timings {
    /// Allocating directories, ids and cgroups.
    pub slot: Duration,
    /// Cloning PID 1 with its namespaces.
    pub clone: Duration,
    /// Mounting the root file system and, in parallel, moving PID 1 into its cgroups.
    pub root: Duration,
    /// From the mounted root to the point where execs work.
    pub start: Duration,
}

impl Timings {
    /// Sum of all stages.
    pub fn total(&self) -> Duration {
        self.slot + self.clone + self.root + self.start
    }
}

/// Disk usage of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskUsage {
    /// Space of the files it wrote, without the template.
    pub used: Bytes,
    /// Limit of that space.
    pub limit: Bytes,
    /// Whether the kernel enforces the limit. Otherwise the limit is advisory.
    pub enforced: bool,
    /// Whether all files were measured. Otherwise `used` is a lower bound.
    pub complete: bool,
}

/// Resource usage of a sandbox at one moment, with its limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Time of the sample in microseconds since 1970.
    pub at: i64,
    /// Total CPU time.
    pub cpu: Duration,
    /// CPU usage since the previous sample, in percent of the CPU limit.
    pub cpu_percent: f64,
    /// Memory without page cache.
    pub memory: Bytes,
    /// Page cache, which the kernel reclaims under memory pressure.
    pub cache: Bytes,
    /// Disk usage at the last measurement.
    pub disk: Option<Bytes>,
    /// Number of processes and threads, including PID 1.
    pub pids: u32,
    /// Limits at that moment.
    pub limits: Limits,
}

/// Current resource usage of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Total CPU time.
    pub cpu: Duration,
    /// Memory in use.
    pub memory: Bytes,
    /// Number of processes and threads, including PID 1.
    pub pids: u64,
}

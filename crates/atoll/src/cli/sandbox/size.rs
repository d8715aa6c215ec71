//! Resource limits and network of a sandbox, as options and as fields of a request.

use atoll_model::{Bytes, Code, Cpus, Error, Limits, Network, NetworkRule};
use clap::Args;
use serde_json::{Map, Value, json};

/// Resource limits and network of a sandbox.
#[derive(Debug, Args)]
pub(crate) struct Size {
    /// CPU limit, in CPUs [default: 2].
    #[arg(long, value_name = "N")]
    cpus: Option<Cpus>,
    /// Memory limit, including the page cache [default: 2G].
    #[arg(long, value_name = "SIZE")]
    memory: Option<Bytes>,
    /// Limit of the disk space that the sandbox's changes take [default: 10G].
    #[arg(long, value_name = "SIZE")]
    disk: Option<Bytes>,
    /// Limit of processes and threads [default: 1024].
    #[arg(long, value_name = "N")]
    pids: Option<u32>,
    /// Network of the sandbox.
    #[arg(long, default_value = "none", value_name = "none|internet")]
    pub(crate) net: Network,
    /// Allow connections to these addresses. Without --deny, all others are refused.
    #[arg(long, value_name = "RULE")]
    allow: Vec<NetworkRule>,
    /// Refuse connections to these addresses, except those that --allow names.
    #[arg(long, value_name = "RULE")]
    deny: Vec<NetworkRule>,
}

impl Size {
    /// The body of the request.
    pub(crate) fn body(&self) -> Result<Map<String, Value>, Error> {
        let usual = Limits::default();
        let limits = Limits {
            cpus: self.cpus.unwrap_or(usual.cpus),
            memory: self.memory.unwrap_or(usual.memory),
            disk: self.disk.unwrap_or(usual.disk),
            pids: self.pids.unwrap_or(usual.pids),
        };
        described(limits, self.net, &self.allow, &self.deny)
    }
}

/// Limits and network as fields of the request.
pub(crate) fn described(
    limits: Limits,
    network: Network,
    allow: &[NetworkRule],
    deny: &[NetworkRule],
) -> Result<Map<String, Value>, Error> {
    let rules = |rules: &[NetworkRule]| -> Vec<String> {
        rules.iter().map(NetworkRule::to_string).collect()
    };
    let body = json!({
        "cpuCount": f64::from(limits.cpus.0) / 1000.0,
        "memoryMB": mebibytes("memory", limits.memory)?,
        "diskMB": mebibytes("disk", limits.disk)?,
        "pids": limits.pids,
        "network": network.to_string(),
        "allow": rules(allow),
        "deny": rules(deny),
    });
    let Value::Object(body) = body else {
        return Err(Error::new(Code::Internal, "a sandbox is an object"));
    };
    Ok(body)
}

pub(super) fn mebibytes(field: &str, size: Bytes) -> Result<u64, Error> {
    if size.0.is_multiple_of(1 << 20) {
        return Ok(size.0 >> 20);
    }
    let message = format!("--{field} {size} is not whole mebibytes");
    Err(Error::invalid(field, message, "give it like 512M or 2G"))
}

//! Request types of E2B's control API and their conversion to core types.

use std::collections::BTreeMap;

use atoll_core::{NewSandbox, PauseMode};
use atoll_model::{
    ExpiryAction, Idempotency, Lifetime, NetworkPolicy, PolicyAction, PortAccess, SandboxSpec,
};

use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::Value;

use super::refuse_if_given;
use crate::e2b::error::{E2bError, E2bResult};
use crate::extract::fingerprint;

/// Parses a timeout in seconds.
fn parse_seconds(requested: Option<i64>, default: u32) -> E2bResult<u32> {
    match requested {
        None => Ok(default),
        // A negative timeout is 0.
        Some(..=0) => Ok(0),
        Some(requested) => u32::try_from(requested).map_err(|_| {
            let message = format!("the timeout of {requested} s is too long");
            E2bError::new(StatusCode::BAD_REQUEST, message)
        }),
    }
}

#[derive(Debug, Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreateSandbox {
    #[serde(rename = "templateID")]
    template_id: String,
    timeout: Option<i64>,
    #[serde(default)]
    auto_pause: bool,
    auto_pause_memory: Option<bool>,
    auto_resume: Option<AutoResume>,
    /// Access tokens are always required.
    secure: Option<bool>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    network: Option<Network>,
    metadata: Option<BTreeMap<String, String>>,
    env_vars: Option<BTreeMap<String, String>>,
    /// Evaluated by the client only.
    mcp: Option<Value>,
    iam: Option<Value>,
    volume_mounts: Option<Value>,
}

#[derive(Debug, Deserialize, serde::Serialize)]
struct AutoResume {
    #[serde(default)]
    enabled: bool,
}

impl CreateSandbox {
    pub(super) fn template(&self) -> &str {
        &self.template_id
    }

    /// Converts the request; `default` is the default timeout in seconds.
    pub(super) fn sandbox(&self, headers: &HeaderMap, default: u32) -> E2bResult<NewSandbox> {
        refuse_if_given(self.iam.as_ref(), "iam")?;
        refuse_if_given(self.volume_mounts.as_ref(), "volumes")?;
        let request = self.network.as_ref();
        let (network, policy) = match request {
            Some(request) => request.parse(self.allow_internet_access)?,
            None => Network::default().parse(self.allow_internet_access)?,
        };
        let on_timeout = match (self.auto_pause, self.auto_pause_memory) {
            (false, _) => ExpiryAction::Destroy,
            (true, Some(false)) => ExpiryAction::Stop,
            (true, _) => ExpiryAction::Pause,
        };
        Ok(NewSandbox {
            spec: SandboxSpec {
                template: self.template_id.clone(),
                network,
                policy,
                environment: self.environment(),
                lifetime: Some(Lifetime {
                    timeout: Some(parse_seconds(self.timeout, default)?),
                    on_timeout,
                    idle_timeout: None,
                    on_idle: ExpiryAction::default(),
                    auto_resume: self.auto_resume.as_ref().is_some_and(|auto| auto.enabled),
                }),
                ..SandboxSpec::default()
            },
            alias: None,
            metadata: self.metadata.clone().unwrap_or_default(),
            port_access: match request.and_then(|request| request.allow_public_traffic) {
                Some(false) => PortAccess::Token,
                _ => PortAccess::Public,
            },
            idempotency: self.idempotency(headers)?,
        })
    }

    /// Adds `E2B_SANDBOX`, by which programs detect E2B.
    fn environment(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::from([("E2B_SANDBOX".to_owned(), "true".to_owned())]);
        all.extend(self.env_vars.clone().unwrap_or_default());
        all
    }

    fn idempotency(&self, headers: &HeaderMap) -> E2bResult<Option<Idempotency>> {
        let Some(key) = headers.get("idempotency-key") else {
            return Ok(None);
        };
        let fits = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        let key = key
            .to_str()
            .ok()
            .filter(|key| (1..=255).contains(&key.len()) && key.bytes().all(fits));
        let key = key.ok_or_else(|| {
            let message = "the Idempotency-Key has 1 to 255 of a-z, 0-9 and -";
            E2bError::new(StatusCode::BAD_REQUEST, message)
        })?;
        let body = serde_json::to_vec(self).unwrap_or_default();
        Ok(Some(Idempotency {
            key: key.to_owned(),
            fingerprint: fingerprint(&body),
        }))
    }
}

/// Network rules and access to ports.
#[derive(Debug, Default, Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Network {
    #[serde(default)]
    allow_out: Vec<String>,
    #[serde(default)]
    deny_out: Vec<String>,
    allow_public_traffic: Option<bool>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    rules: Option<Value>,
    egress_proxy: Option<Value>,
    dns_servers: Option<Value>,
    mask_request_host: Option<Value>,
    https_ports: Option<Value>,
}

impl Network {
    /// Parses the rules for an existing sandbox.
    pub(super) fn parse_change(&self) -> E2bResult<(atoll_model::Network, NetworkPolicy)> {
        let given = self.allow_public_traffic.map(|_| Value::Bool(true));
        refuse_if_given(given.as_ref(), "a change of allowPublicTraffic")?;
        self.parse(None)
    }

    /// Converts the rules. `allow` takes precedence over `deny`, in E2B and here.
    pub(super) fn parse(
        &self,
        internet: Option<bool>,
    ) -> E2bResult<(atoll_model::Network, NetworkPolicy)> {
        for (value, what) in [
            (&self.rules, "network rules by domain"),
            (&self.egress_proxy, "egressProxy"),
            (&self.dns_servers, "dnsServers"),
            (&self.mask_request_host, "maskRequestHost"),
            (&self.https_ports, "httpsPorts"),
        ] {
            refuse_if_given(value.as_ref(), what)?;
        }
        let is_domain = |word: &&String| word.chars().any(|letter| letter.is_ascii_alphabetic());
        if let Some(domain) = self.allow_out.iter().chain(&self.deny_out).find(is_domain) {
            let message = format!(
                "{domain:?} is a domain: Atoll's network rules know addresses and blocks only, such as 1.1.1.0/24"
            );
            return Err(E2bError::new(StatusCode::BAD_REQUEST, message));
        }
        let internet = self.allow_internet_access.or(internet).unwrap_or(true);
        let default = if internet {
            PolicyAction::Allow
        } else {
            PolicyAction::Deny
        };
        // Without reachable addresses the sandbox needs no network; one can be added later.
        if !internet && self.allow_out.is_empty() && self.deny_out.is_empty() {
            return Ok((atoll_model::Network::None, NetworkPolicy::default()));
        }
        let policy = NetworkPolicy::parse(&self.allow_out, &self.deny_out, default)?;
        Ok((atoll_model::Network::Internet, policy))
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Timeout {
    timeout: i64,
}

impl Timeout {
    pub(super) fn seconds(&self) -> E2bResult<u32> {
        parse_seconds(Some(self.timeout), 0)
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Refresh {
    duration: Option<i64>,
}

impl Refresh {
    pub(super) fn seconds(&self) -> E2bResult<u32> {
        match parse_seconds(self.duration, 0)? {
            seconds @ ..=3600 => Ok(seconds),
            more => {
                let message = format!("duration: {more} is more than 3600");
                Err(E2bError::new(StatusCode::BAD_REQUEST, message))
            }
        }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Connect {
    timeout: Option<i64>,
    memory: Option<bool>,
}

impl Connect {
    pub(super) fn to_core(&self) -> E2bResult<atoll_core::ConnectOptions> {
        Ok(atoll_core::ConnectOptions {
            seconds: parse_seconds(self.timeout, 300)?,
            keep_memory: self.memory.unwrap_or(true),
            require_suspended: false,
            on_timeout: None,
        })
    }
}

/// Older form of `connect`, for paused sandboxes only.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Resume {
    timeout: Option<i64>,
    memory: Option<bool>,
    auto_pause: Option<bool>,
}

impl Resume {
    pub(super) fn to_core(&self) -> E2bResult<atoll_core::ConnectOptions> {
        let on_timeout = self.auto_pause.map(|pauses| {
            if pauses {
                ExpiryAction::Pause
            } else {
                ExpiryAction::Destroy
            }
        });
        Ok(atoll_core::ConnectOptions {
            seconds: parse_seconds(self.timeout, 15)?,
            keep_memory: self.memory.unwrap_or(true),
            require_suspended: true,
            on_timeout,
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Pause {
    memory: Option<bool>,
    /// Ignored: pausing needs no cooperation of the guest.
    #[serde(rename = "requireHealthyGuest")]
    _require_healthy_guest: Option<bool>,
}

impl Pause {
    pub(super) fn to_core(&self) -> PauseMode {
        match self.memory {
            Some(false) => PauseMode::FilesOnly,
            _ => PauseMode::Memory,
        }
    }
}

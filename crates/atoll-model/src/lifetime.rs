//! Timeouts of a sandbox and the action at their end.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Action when a sandbox's timeout or idle timeout ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExpiryAction {
    /// Delete the sandbox and its files.
    #[default]
    Destroy,
    /// End its processes, keep its files.
    Stop,
    /// Freeze its processes.
    Pause,
}

/// Timeouts of a sandbox and its next expiry. Times are server time in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Timeouts and their actions.
    pub lifetime: Lifetime,
    /// Expiry of the timeout, while the sandbox runs.
    pub end_at: Option<i64>,
    /// Remaining timeout, while the sandbox is paused.
    pub time_left: Option<i64>,
}

/// Timeouts of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lifetime {
    /// Seconds from the start to the expiry. `None`: no expiry.
    pub timeout: Option<u32>,
    /// Action when the timeout ends.
    #[serde(default)]
    pub on_timeout: ExpiryAction,
    /// Seconds without activity until it counts as idle. `None`: never.
    #[serde(default)]
    pub idle_timeout: Option<u32>,
    /// Action when the idle timeout ends.
    #[serde(default)]
    pub on_idle: ExpiryAction,
    /// Resume or start the sandbox on the next call to it.
    #[serde(default = "yes")]
    pub auto_resume: bool,
}

fn yes() -> bool {
    true
}

impl Lifetime {
    /// Timeout of a sandbox that is created without one.
    pub const DEFAULT_TIMEOUT_SECS: u32 = 300;
}

impl Default for Lifetime {
    fn default() -> Self {
        Self {
            timeout: Some(Self::DEFAULT_TIMEOUT_SECS),
            on_timeout: ExpiryAction::Destroy,
            idle_timeout: None,
            on_idle: ExpiryAction::Stop,
            auto_resume: true,
        }
    }
}

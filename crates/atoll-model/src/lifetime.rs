//! How long a sandbox lives, and what happens then.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What happens to a sandbox when its timeout or its idle timeout ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExpiryAction {
    /// It is deleted, with its files.
    #[default]
    Destroy,
    /// Its processes end, its files stay.
    Stop,
    /// Its processes stand still.
    Pause,
}

/// When a sandbox's time is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lifetime {
    /// How long it runs from its start, in seconds; `None` is without end.
    pub timeout: Option<u32>,
    /// What happens then.
    #[serde(default)]
    pub on_timeout: ExpiryAction,
    /// How long it may be idle, in seconds; `None` is for ever.
    #[serde(default)]
    pub idle_timeout: Option<u32>,
    /// What happens then.
    #[serde(default)]
    pub on_idle: ExpiryAction,
    /// A use of it while it is paused lets it go on.
    #[serde(default = "yes")]
    pub auto_resume: bool,
}

fn yes() -> bool {
    true
}

impl Lifetime {
    /// How long a sandbox runs if nothing is said, in seconds.
    pub const TIMEOUT: u32 = 300;
}

impl Default for Lifetime {
    fn default() -> Self {
        Self {
            timeout: Some(Self::TIMEOUT),
            on_timeout: ExpiryAction::Destroy,
            idle_timeout: None,
            on_idle: ExpiryAction::Stop,
            auto_resume: true,
        }
    }
}

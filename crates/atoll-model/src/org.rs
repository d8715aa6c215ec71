//! Orgs, which own sandboxes, and their API keys.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Error, KeyId, OrgId};

/// Owner of sandboxes and keys. A request for a sandbox of another org gets 404.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Org {
    /// Org id.
    #[serde(rename = "orgID")]
    pub id: OrgId,
    /// Display name.
    pub name: String,
    /// Maximum number of concurrent sandboxes. `None`: no limit.
    pub max_sandboxes: Option<u32>,
    /// Maximum timeout of its sandboxes in seconds. `None`: no limit.
    pub max_timeout: Option<u32>,
    /// Creation time in microseconds since 1970.
    pub created_at: i64,
}

impl Org {
    /// Sandbox limit of an org that is created without one.
    pub const DEFAULT_MAX_SANDBOXES: u32 = 5;
    /// Maximum timeout in seconds of an org that is created without one.
    pub const DEFAULT_MAX_TIMEOUT_SECS: u32 = 3600;
}

/// Permissions of an API key. Each scope includes the ones after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub enum Scope {
    /// All operations in all orgs.
    #[serde(rename = "admin")]
    Admin,
    /// All operations on the org's sandboxes.
    #[serde(rename = "sandbox:*")]
    Sandboxes,
    /// Read access to the org's sandboxes.
    #[serde(rename = "sandbox:read")]
    Read,
}

impl Scope {
    /// Whether this scope includes the required one.
    pub fn allows(self, required: Self) -> bool {
        self <= required
    }
}

/// An API key without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Key {
    /// Key id.
    #[serde(rename = "keyID")]
    pub id: KeyId,
    /// The org that the key belongs to.
    #[serde(rename = "orgID")]
    pub org: OrgId,
    /// Display name.
    pub name: String,
    /// First characters of the secret, to recognize the key by.
    pub prefix: String,
    /// Permissions.
    pub scope: Scope,
    /// Creation time in microseconds since 1970.
    pub created_at: i64,
    /// Time from which the key is rejected. `None`: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
    /// Time of the last use, with a resolution of one minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<i64>,
    /// Time of the revocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<i64>,
}

/// Validates a display name: 1 to 100 characters, no control characters.
pub(crate) fn check_name(field: &str, name: &str) -> Result<(), Error> {
    let fits = (1..=100).contains(&name.chars().count()) && !name.chars().any(char::is_control);
    if fits {
        return Ok(());
    }
    Err(Error::invalid(
        field,
        format!("{field} is empty, longer than 100 characters or has control characters"),
        "choose a short name",
    ))
}

impl Org {
    /// Rejects names that cannot be displayed.
    pub fn check_name(name: &str) -> Result<(), Error> {
        check_name("name", name)
    }
}

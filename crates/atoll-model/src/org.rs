//! Whose sandboxes they are, and the keys by which they are asked for.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Error, KeyId, OrgId};

/// Owns sandboxes. What belongs to another org is not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Org {
    /// Its id.
    #[serde(rename = "orgID")]
    pub id: OrgId,
    /// What people call it.
    pub name: String,
    /// How many sandboxes it may have at once; `None` is as many as the machine holds.
    pub max_sandboxes: Option<u32>,
    /// The longest lifetime in seconds; `None` is no end.
    pub max_timeout: Option<u32>,
    /// When it was made: microseconds since 1970.
    pub created_at: i64,
}

impl Org {
    /// How many sandboxes an org may have that nobody said anything else of.
    pub const SANDBOXES: u32 = 5;
    /// The longest lifetime, in seconds, of an org that nobody said anything else of.
    pub const TIMEOUT: u32 = 3600;
}

/// What a key is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub enum Scope {
    /// Everything, in every org.
    #[serde(rename = "admin")]
    Admin,
    /// Everything with the org's sandboxes.
    #[serde(rename = "sandbox:*")]
    Sandboxes,
    /// Looking at them.
    #[serde(rename = "sandbox:read")]
    Read,
}

impl Scope {
    /// Whether who has this may do what asks for that.
    pub fn allows(self, asked: Self) -> bool {
        self <= asked
    }
}

/// A key, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Key {
    /// Its id.
    #[serde(rename = "keyID")]
    pub id: KeyId,
    /// Whose it is.
    #[serde(rename = "orgID")]
    pub org: OrgId,
    /// What people call it.
    pub name: String,
    /// The first characters of its secret, to tell it by.
    pub prefix: String,
    /// What it is good for.
    pub scope: Scope,
    /// When it was made: microseconds since 1970.
    pub created_at: i64,
    /// From when on it is not accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
    /// When it was last used, to the minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<i64>,
    /// Since when it is not accepted any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<i64>,
}

/// Checks what people call something.
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
    /// Refuses a name that cannot be shown.
    pub fn check_name(name: &str) -> Result<(), Error> {
        check_name("name", name)
    }
}

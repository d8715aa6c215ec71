//! Identifiers. A sandbox's is `i` and 20 characters of `[a-z0-9]`: a DNS label, and a useful
//! prefix after five characters. Others have a prefix that says what they name. Order comes from times,
//! never from ids.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{Object, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::Error;

const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
const RANDOM: usize = 20;

macro_rules! ids {
    ($( $(#[$doc:meta])* $name:ident = $prefix:literal, $what:literal; )*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// A new one, from the system's random source.
            pub fn random() -> Self {
                Self(format!(concat!($prefix, "{}"), random(RANDOM)))
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                Object::builder()
                    .schema_type(Type::String)
                    .description(Some(concat!($what, " id")))
                    .pattern(Some(format!(concat!("^", $prefix, "[a-z0-9]{{{}}}$"), RANDOM)))
                    .into()
            }
        }

        impl ToSchema for $name {}

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                let rest = text.strip_prefix($prefix).unwrap_or_default();
                if rest.len() == RANDOM && rest.bytes().all(|byte| LETTERS.contains(&byte)) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(Error::invalid(
                        "id",
                        format!(concat!("{:?} is not ", $what, " id"), text),
                        concat!("an id is ", $prefix, " and 20 of a-z and 0-9"),
                    ))
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;
            fn try_from(text: String) -> Result<Self, Error> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

ids! {
    /// A sandbox's name for good.
    SandboxId = "i", "a sandbox";
    /// A command's name for good.
    ExecId = "exec_", "an exec";
    /// Whose sandboxes they are.
    OrgId = "org_", "an org";
    /// A key's name, which is no secret.
    KeyId = "key_", "a key";
    /// One life of a sandbox in the history.
    SessionId = "sess_", "a session";
    /// Something that happened.
    EventId = "evt_", "an event";
    /// A data directory of a server and its database: recorded in both.
    InstanceId = "inst_", "an instance";
    /// A request, in answers and in logs.
    RequestId = "req_", "a request";
}

/// What a run is called by who starts it: a DNS label, and a directory's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RunName(String);

impl RunName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RunName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let letters = text
            .bytes()
            .all(|byte| LETTERS.contains(&byte) || byte == b'-');
        if letters && (1..=63).contains(&text.len()) && !text.starts_with('-') {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::invalid(
            "name",
            format!(
                "{text:?} is not a name: it is 1 to 63 of a-z 0-9 -, and does not begin with -"
            ),
            "choose one like nightly-build",
        ))
    }
}

impl TryFrom<String> for RunName {
    type Error = Error;
    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<RunName> for String {
    fn from(name: RunName) -> Self {
        name.0
    }
}

impl fmt::Display for RunName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Characters of `[a-z0-9]` from the system's random source.
fn random(length: usize) -> String {
    let mut text = String::with_capacity(length);
    while text.len() < length {
        let mut bytes = [0_u8; 32];
        let filled = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())
            .unwrap_or(0);
        // 252 is the largest multiple of 36 in a byte: what is above would make some more likely.
        let letters = bytes[..filled].iter().filter(|byte| **byte < 252);
        text.extend(letters.map(|byte| LETTERS[usize::from(byte % 36)] as char));
    }
    text.truncate(length);
    text
}

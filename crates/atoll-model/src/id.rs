//! Random identifiers with a type prefix.
//!
//! An id is a prefix and 20 random characters of `[a-z0-9]`. The prefix of a sandbox id is `i`, so that the id is a DNS
//! label. Ids have no order: lists are sorted by time first.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{Object, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::Error;

const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
/// Number of characters after the prefix.
const RANDOM_LEN: usize = 20;

macro_rules! ids {
    ($( $(#[$doc:meta])* $name:ident = $prefix:literal, $what:literal; )*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Generates an id from the kernel's random source.
            pub fn random() -> Self {
                Self(format!(concat!($prefix, "{}"), random_chars(RANDOM_LEN)))
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
                    .pattern(Some(format!(concat!("^", $prefix, "[a-z0-9]{{{}}}$"), RANDOM_LEN)))
                    .into()
            }
        }

        impl ToSchema for $name {}

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                let rest = text.strip_prefix($prefix).unwrap_or_default();
                if rest.len() == RANDOM_LEN && rest.bytes().all(|byte| ALPHABET.contains(&byte)) {
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
    /// Id of a sandbox. Never reused.
    SandboxId = "i", "a sandbox";
    /// Id of an exec: a command or a terminal.
    ExecId = "exec_", "an exec";
    /// Id of an org.
    OrgId = "org_", "an org";
    /// Id of an API key. Not a secret.
    KeyId = "key_", "a key";
    /// Id of a session: the history of one sandbox.
    SessionId = "sess_", "a session";
    /// Id of an event.
    EventId = "evt_", "an event";
    /// Id of a server's data directory. Recorded in the directory and in its database.
    InstanceId = "inst_", "an instance";
    /// Id of a request, in responses and logs.
    RequestId = "req_", "a request";
}

/// Name of a detached run, chosen by its user. A DNS label that is also a directory name.
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
            .all(|byte| ALPHABET.contains(&byte) || byte == b'-');
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

/// Random characters of `[a-z0-9]` from the kernel's random source.
fn random_chars(length: usize) -> String {
    let mut text = String::with_capacity(length);
    while text.len() < length {
        let mut bytes = [0_u8; 32];
        let filled = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty())
            .unwrap_or(0);
        // 252 is the largest multiple of 36 in a byte. Larger values would make some characters more likely.
        let letters = bytes[..filled].iter().filter(|byte| **byte < 252);
        text.extend(letters.map(|byte| ALPHABET[usize::from(byte % 36)] as char));
    }
    text.truncate(length);
    text
}

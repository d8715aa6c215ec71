//! What an uploader says of a file in headers, kept as extended attributes of the file.

use atoll_model::Attributes;
use axum::http::{HeaderMap, StatusCode};

use crate::e2b::error::{Answer, Refusal};

/// How headers that say something of the file begin.
const HEADER: &str = "x-metadata-";
/// How attributes begin that E2B's clients are told.
pub(in crate::e2b::envd) const PREFIX: &str = "user.e2b.";
/// The longest name: the kernel's, without the prefix.
const NAME: usize = 246;
/// The most of names and values together.
const MOST: usize = 4096;

/// All that is said of a file, which replaces what was said before.
pub(super) fn attributes(headers: &HeaderMap) -> Answer<Attributes> {
    let refused = |message: String| Err(Refusal::new(StatusCode::BAD_REQUEST, message));
    let mut attributes = Attributes {
        prefix: PREFIX.to_owned(),
        ..Attributes::default()
    };
    let mut bytes = 0;
    for (name, value) in headers {
        let Some(name) = name.as_str().strip_prefix(HEADER) else {
            continue;
        };
        if name.is_empty() || name.len() > NAME {
            return refused(format!("metadata key '{name}' has not 1 to {NAME} bytes"));
        }
        let printable = |byte: &u8| (0x20..0x7f).contains(byte);
        let Some(value) = value
            .to_str()
            .ok()
            .filter(|value| value.as_bytes().iter().all(printable))
        else {
            return refused(format!(
                "metadata value for key '{name}' is not printable ASCII"
            ));
        };
        bytes += name.len() + value.len();
        let values = &mut attributes.values;
        values.insert(name.to_owned(), value.to_owned());
    }
    if bytes > MOST {
        return refused(format!("metadata has {bytes} bytes, more than {MOST}"));
    }
    Ok(attributes)
}

//! What an uploader says of a file in headers, kept as extended attributes of the file.

use atoll_model::Attributes;
use axum::http::{HeaderMap, StatusCode};

use crate::e2b::error::{E2bError, E2bResult};

/// How headers that say something of the file begin.
const HEADER_PREFIX: &str = "x-metadata-";
/// How attributes begin that E2B's clients are told.
pub(in crate::e2b::envd) const ATTRIBUTE_PREFIX: &str = "user.e2b.";
/// The longest name: the kernel's, without the prefix.
const MAX_NAME_BYTES: usize = 246;
/// The most of names and values together.
const MAX_TOTAL_BYTES: usize = 4096;

/// All that is said of a file, which replaces what was said before.
pub(super) fn attributes(headers: &HeaderMap) -> E2bResult<Attributes> {
    let invalid = |message: String| Err(E2bError::new(StatusCode::BAD_REQUEST, message));
    let mut attributes = Attributes {
        prefix: ATTRIBUTE_PREFIX.to_owned(),
        ..Attributes::default()
    };
    let mut bytes = 0;
    for (name, value) in headers {
        let Some(name) = name.as_str().strip_prefix(HEADER_PREFIX) else {
            continue;
        };
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return invalid(format!(
                "metadata key '{name}' has not 1 to {MAX_NAME_BYTES} bytes"
            ));
        }
        let printable = |byte: &u8| (0x20..0x7f).contains(byte);
        let Some(value) = value
            .to_str()
            .ok()
            .filter(|value| value.as_bytes().iter().all(printable))
        else {
            return invalid(format!(
                "metadata value for key '{name}' is not printable ASCII"
            ));
        };
        bytes += name.len() + value.len();
        let values = &mut attributes.values;
        values.insert(name.to_owned(), value.to_owned());
    }
    if bytes > MAX_TOTAL_BYTES {
        return invalid(format!(
            "metadata has {bytes} bytes, more than {MAX_TOTAL_BYTES}"
        ));
    }
    Ok(attributes)
}

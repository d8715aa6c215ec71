//! File metadata in headers, stored as extended attributes.

use atoll_model::Attributes;
use axum::http::{HeaderMap, StatusCode};

use crate::e2b::error::{E2bError, E2bResult};

/// Prefix of metadata headers.
const HEADER_PREFIX: &str = "x-metadata-";
/// Prefix of the extended attributes that E2B clients see.
pub(in crate::e2b::envd) const ATTRIBUTE_PREFIX: &str = "user.e2b.";
/// Maximum length of a name: the kernel's limit without the prefix.
const MAX_NAME_BYTES: usize = 246;
/// Maximum size of all names and values.
const MAX_TOTAL_BYTES: usize = 4096;

/// The metadata of an upload, which replaces that of an existing file.
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
                "metadata key '{name}' must have 1 to {MAX_NAME_BYTES} bytes"
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

//! Validators and conditional requests (RFC 9110, section 13): `ETag` and `Last-Modified` of a
//! file.

use atoll_model::{FileEntry, FileKind};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use jiff::Timestamp;
use jiff::fmt::rfc2822::{DateTimeParser, DateTimePrinter};

/// Validators of one version of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Validators {
    etag: String,
    last_modified: String,
    /// In seconds since 1970, the resolution of HTTP dates.
    modified: i64,
}

impl Validators {
    /// `None` for generated files (`/proc`): neither size nor time reflects their changes.
    pub(super) fn from_entry(entry: &FileEntry) -> Option<Self> {
        if entry.kind != FileKind::File || entry.size == 0 {
            return None;
        }
        let modified = entry.modified.div_euclid(1_000_000_000);
        let time = Timestamp::from_second(modified).ok()?;
        Some(Self {
            etag: format!("\"{:x}-{:x}\"", entry.modified, entry.size),
            last_modified: DateTimePrinter::new()
                .timestamp_to_rfc9110_string(&time)
                .ok()?,
            modified,
        })
    }

    /// Adds `ETag` and `Last-Modified`.
    pub(super) fn write_headers(&self, headers: &mut HeaderMap) {
        for (name, value) in [
            (header::ETAG, &self.etag),
            (header::LAST_MODIFIED, &self.last_modified),
        ] {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        }
    }

    /// Whether a conditional request matches this version. `If-None-Match` takes precedence over
    /// `If-Modified-Since`.
    pub(super) fn is_not_modified(&self, headers: &HeaderMap) -> bool {
        if headers.contains_key(header::IF_NONE_MATCH) {
            let named = headers.get_all(header::IF_NONE_MATCH).into_iter();
            let mut named = named
                .filter_map(|line| line.to_str().ok())
                .flat_map(|line| line.split(','))
                .map(str::trim);
            return named.any(|etag| etag == "*" || etag.trim_start_matches("W/") == self.etag);
        }
        let since = header_str(headers, &header::IF_MODIFIED_SINCE).and_then(parse_http_date);
        since.is_some_and(|since| self.modified <= since)
    }
}

/// Whether `If-Range` matches, so that a range may be sent. True without that header.
pub(super) fn if_range_matches(validators: Option<&Validators>, headers: &HeaderMap) -> bool {
    let Some(validator) = header_str(headers, &header::IF_RANGE) else {
        return true;
    };
    // A date must match exactly.
    validators.is_some_and(|validators| {
        validator == validators.etag || parse_http_date(validator) == Some(validators.modified)
    })
}

/// Whether the request has conditional headers.
pub(super) fn has_conditions(headers: &HeaderMap) -> bool {
    let names = [
        header::IF_NONE_MATCH,
        header::IF_MODIFIED_SINCE,
        header::IF_RANGE,
    ];
    names.iter().any(|name| headers.contains_key(name))
}

fn header_str<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

/// Parses an HTTP date into seconds since 1970.
fn parse_http_date(text: &str) -> Option<i64> {
    let time = DateTimeParser::new().parse_timestamp(text.trim()).ok()?;
    Some(time.as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(modified: i64, size: u64) -> FileEntry {
        FileEntry {
            path: Vec::new(),
            kind: FileKind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            size,
            modified,
            link: None,
        }
    }

    fn request(lines: &[(HeaderName, &str)]) -> HeaderMap {
        let lines = lines.iter().cloned();
        let lines = lines.map(|(name, value)| (name, HeaderValue::from_str(value).expect("text")));
        lines.collect()
    }

    #[test]
    fn etag_takes_precedence_over_last_modified() {
        let validators =
            Validators::from_entry(&file(784_111_777_500_000_000, 5)).expect("a version");
        assert_eq!(validators.last_modified, "Sun, 06 Nov 1994 08:49:37 GMT");
        let (etag, since) = (header::IF_NONE_MATCH, header::IF_MODIFIED_SINCE);
        let (own, earlier) = (
            validators.last_modified.clone(),
            "Sun, 06 Nov 1994 08:49:36 GMT",
        );
        let several = format!("\"x\", W/{}", validators.etag);
        for (lines, not_modified) in [
            (vec![], false),
            (vec![(etag.clone(), validators.etag.as_str())], true),
            (vec![(etag.clone(), &*several)], true),
            (vec![(etag.clone(), "*")], true),
            (vec![(etag.clone(), "\"x\"")], false),
            (vec![(since.clone(), &*own)], true),
            (vec![(since.clone(), earlier)], false),
            (vec![(since.clone(), "yesterday")], false),
            (vec![(etag, "\"x\""), (since, &*own)], false),
        ] {
            assert_eq!(
                validators.is_not_modified(&request(&lines)),
                not_modified,
                "{lines:?}"
            );
        }
    }

    #[test]
    fn if_range_needs_an_exact_match() {
        let validators =
            Validators::from_entry(&file(784_111_777_500_000_000, 5)).expect("a version");
        let weak = format!("W/{}", validators.etag);
        for (validator, same) in [
            (&*validators.etag, true),
            (&*validators.last_modified, true),
            (&*weak, false),
            ("\"x\"", false),
            ("Sun, 06 Nov 1994 08:49:38 GMT", false),
        ] {
            let request = request(&[(header::IF_RANGE, validator)]);
            assert_eq!(
                if_range_matches(Some(&validators), &request),
                same,
                "{validator}"
            );
        }
        assert!(if_range_matches(None, &HeaderMap::new()));
        let request = request(&[(header::IF_RANGE, &validators.etag)]);
        assert!(!if_range_matches(None, &request));
    }

    #[test]
    fn changes_give_new_validators_and_generated_files_have_none() {
        let validators = |modified, size| Validators::from_entry(&file(modified, size));
        assert_ne!(validators(1, 5), validators(2, 5));
        assert_ne!(validators(1, 5), validators(1, 6));
        assert!(validators(-1, 5).is_some_and(|validators| validators.modified == -1));
        assert_eq!(validators(1, 0), None);
        let directory = FileEntry {
            kind: FileKind::Directory,
            ..file(1, 5)
        };
        assert_eq!(Validators::from_entry(&directory), None);
    }
}

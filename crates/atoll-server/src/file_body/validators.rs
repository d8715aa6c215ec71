//! Whether a file is still the one that somebody has: its mark and its time, as RFC 9110 (13) has them.

use atoll_model::{Entry, EntryKind};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use jiff::Timestamp;
use jiff::fmt::rfc2822::{DateTimeParser, DateTimePrinter};

/// One version of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    mark: String,
    time: String,
    /// In seconds since 1970: HTTP knows no smaller ones.
    modified: i64,
}

impl Version {
    /// What the kernel makes up as it is read has none: neither its size nor its time says when it changes.
    pub(super) fn of(entry: &Entry) -> Option<Self> {
        if entry.kind != EntryKind::File || entry.size == 0 {
            return None;
        }
        let modified = entry.modified.div_euclid(1_000_000_000);
        let time = Timestamp::from_second(modified).ok()?;
        Some(Self {
            mark: format!("\"{:x}-{:x}\"", entry.modified, entry.size),
            time: DateTimePrinter::new()
                .timestamp_to_rfc9110_string(&time)
                .ok()?,
            modified,
        })
    }

    /// Says which one an answer is about.
    pub(super) fn sign(&self, headers: &mut HeaderMap) {
        for (name, value) in [
            (header::ETAG, &self.mark),
            (header::LAST_MODIFIED, &self.time),
        ] {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        }
    }

    /// Whether it is the one that a request's sender has: by its mark, or, if no mark is named, by its time.
    pub(super) fn is_had(&self, headers: &HeaderMap) -> bool {
        if headers.contains_key(header::IF_NONE_MATCH) {
            let named = headers.get_all(header::IF_NONE_MATCH).into_iter();
            let mut named = named
                .filter_map(|line| line.to_str().ok())
                .flat_map(|line| line.split(','))
                .map(str::trim);
            return named.any(|mark| mark == "*" || mark.trim_start_matches("W/") == self.mark);
        }
        let since = said(headers, &header::IF_MODIFIED_SINCE).and_then(time);
        since.is_some_and(|since| self.modified <= since)
    }
}

/// Whether a part of a file may be put together with what a request's sender has.
pub(super) fn continues(version: Option<&Version>, headers: &HeaderMap) -> bool {
    let Some(had) = said(headers, &header::IF_RANGE) else {
        return true;
    };
    // A time is good only if it is the very one.
    version.is_some_and(|version| had == version.mark || time(had) == Some(version.modified))
}

/// Whether it depends on what the sender has what is answered.
pub(super) fn matters(headers: &HeaderMap) -> bool {
    let names = [
        header::IF_NONE_MATCH,
        header::IF_MODIFIED_SINCE,
        header::IF_RANGE,
    ];
    names.iter().any(|name| headers.contains_key(name))
}

fn said<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

/// In seconds since 1970.
fn time(text: &str) -> Option<i64> {
    let time = DateTimeParser::new().parse_timestamp(text.trim()).ok()?;
    Some(time.as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(modified: i64, size: u64) -> Entry {
        Entry {
            path: Vec::new(),
            kind: EntryKind::File,
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
    fn a_mark_decides_and_without_one_a_time() {
        let version = Version::of(&file(784_111_777_500_000_000, 5)).expect("a version");
        assert_eq!(version.time, "Sun, 06 Nov 1994 08:49:37 GMT");
        let (mark, since) = (header::IF_NONE_MATCH, header::IF_MODIFIED_SINCE);
        let (own, earlier) = (version.time.clone(), "Sun, 06 Nov 1994 08:49:36 GMT");
        let several = format!("\"x\", W/{}", version.mark);
        for (lines, had) in [
            (vec![], false),
            (vec![(mark.clone(), version.mark.as_str())], true),
            (vec![(mark.clone(), &*several)], true),
            (vec![(mark.clone(), "*")], true),
            (vec![(mark.clone(), "\"x\"")], false),
            (vec![(since.clone(), &*own)], true),
            (vec![(since.clone(), earlier)], false),
            (vec![(since.clone(), "yesterday")], false),
            (vec![(mark, "\"x\""), (since, &*own)], false),
        ] {
            assert_eq!(version.is_had(&request(&lines)), had, "{lines:?}");
        }
    }

    #[test]
    fn a_part_continues_only_the_very_same_file() {
        let version = Version::of(&file(784_111_777_500_000_000, 5)).expect("a version");
        let weak = format!("W/{}", version.mark);
        for (had, same) in [
            (&*version.mark, true),
            (&*version.time, true),
            (&*weak, false),
            ("\"x\"", false),
            ("Sun, 06 Nov 1994 08:49:38 GMT", false),
        ] {
            let request = request(&[(header::IF_RANGE, had)]);
            assert_eq!(continues(Some(&version), &request), same, "{had}");
        }
        assert!(continues(None, &HeaderMap::new()));
        let request = request(&[(header::IF_RANGE, &version.mark)]);
        assert!(!continues(None, &request));
    }

    #[test]
    fn every_change_is_another_version_and_what_is_made_up_has_none() {
        let version = |modified, size| Version::of(&file(modified, size));
        assert_ne!(version(1, 5), version(2, 5));
        assert_ne!(version(1, 5), version(1, 6));
        assert!(version(-1, 5).is_some_and(|version| version.modified == -1));
        assert_eq!(version(1, 0), None);
        let directory = Entry {
            kind: EntryKind::Directory,
            ..file(1, 5)
        };
        assert_eq!(Version::of(&directory), None);
    }
}

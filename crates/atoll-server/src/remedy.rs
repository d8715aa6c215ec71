//! Remedies in HTTP terms: routes, fields and headers. Errors from other crates are also shown by
//! the CLI, so their remedies name CLI commands or nothing.

use std::borrow::Cow;

use atoll_model::{Code, Error};

/// Remedy for an HTTP client; `None` if the error's own remedy fits.
pub(crate) fn for_http(error: &Error) -> Option<Cow<'static, str>> {
    Some(Cow::Borrowed(match error.code {
        Code::SandboxStopped => "start it: POST /sandboxes/{id}/start",
        Code::SandboxPaused => "resume it: POST /sandboxes/{id}/resume",
        Code::SandboxFailed => "delete it with DELETE /sandboxes/{id}, and create another",
        Code::ExecNotFound => {
            "GET /sandboxes/{id}/commands lists its commands, except the oldest of those that ended"
        }
        Code::TerminalNotFound => "GET /sandboxes/{id}/pty lists its terminals",
        Code::KeyNotFound => "GET /keys lists them",
        Code::OrgNotFound => "GET /orgs lists those that you see",
        Code::StdinClosed => "start the command with \"openStdin\": true",
        Code::MethodNotAllowed => "GET /docs shows the methods of each route",
        // A dependency of the server, which sandboxes have nothing to do with.
        Code::NoCapacity if error.details.contains_key("dependency") => return None,
        Code::NoCapacity => {
            "try again after the seconds of Retry-After; or stop, pause or delete sandboxes"
        }
        Code::DiskFull if error.details.contains_key("path") => {
            "delete files of the sandbox, or raise its diskMB: PATCH /sandboxes/{id}"
        }
        Code::DiskFull => {
            "delete sandboxes with DELETE /sandboxes/{id}, or have the server's operator free space"
        }
        Code::UnsupportedByHost => {
            let reason = error.remedy.as_deref().unwrap_or("see the server's log");
            let remedy =
                format!("leave it out, or have the server's operator provide it: {reason}");
            return Some(Cow::Owned(remedy));
        }
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails where something is wrong")]

    use super::*;

    fn remedy(error: &Error) -> String {
        for_http(error).map_or_else(String::new, Cow::into_owned)
    }

    #[test]
    fn http_remedies_name_no_command() {
        for code in Code::ALL {
            let remedy = remedy(&Error::new(*code, "failed"));
            for word in ["atoll ", "curl", "--"] {
                assert!(!remedy.contains(word), "{code:?}: {remedy}");
            }
        }
    }

    /// Remedies that the SDKs translate; their tests read the same file.
    const SAMPLES: &str = include_str!("../../../sdks/remedies.cases.json");

    #[derive(serde::Deserialize)]
    struct Sample {
        code: String,
        remedy: String,
    }

    /// Every code that a server sends, and every remedy in words of HTTP that the source has, is a sample.
    #[test]
    fn http_remedies_are_in_the_samples_of_the_sdks() {
        let samples: Vec<Sample> = serde_json::from_str(SAMPLES).unwrap();
        for code in Code::ALL {
            let is_sent = *code != Code::ServerUnreachable;
            let remedy = remedy(&Error::new(*code, "failed"));
            let is_sample = |sample: &Sample| {
                sample.code == code.name() && (remedy.is_empty() || sample.remedy == remedy)
            };
            assert_eq!(samples.iter().any(is_sample), is_sent, "{code:?} {remedy}");
        }
        let mut count = 0;
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for name in ["atoll-core", "atoll-model", "atoll-server", "atoll-worker"] {
            for text in sources(&crates.join(name).join("src")) {
                for remedy in literal_remedies(&text).filter(|remedy| is_for_http(remedy)) {
                    let known = samples.iter().any(|sample| sample.remedy == remedy);
                    assert!(known, "sdks/remedies.cases.json lacks {remedy:?}");
                    count += 1;
                }
            }
        }
        assert!(count > 10, "{count}");
    }

    fn is_for_http(text: &str) -> bool {
        let words = [
            "GET ", "POST ", "PUT ", "PATCH ", "DELETE ", "…/", "header ",
        ];
        words.iter().any(|word| text.contains(word))
    }

    /// The files of a crate, without those of its tests.
    fn sources(directory: &std::path::Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths
            .flat_map(|path| {
                if path.is_dir() {
                    return sources(&path);
                }
                let text = std::fs::read_to_string(&path).unwrap();
                let own = text.split("#[cfg(test)]\nmod tests {").next();
                let is_test = path.ends_with("tests.rs");
                own.filter(|_| !is_test)
                    .map(str::to_owned)
                    .into_iter()
                    .collect()
            })
            .collect()
    }

    /// The literals that `.remedy(` is called with.
    fn literal_remedies(text: &str) -> impl Iterator<Item = &str> {
        let calls = text.split(".remedy(").skip(1);
        calls.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next())
    }

    #[test]
    fn full_disk_remedy_differs_for_sandbox_and_server() {
        let full = Error::new(Code::DiskFull, "full").remedy("free some space, or run atoll gc");
        assert!(remedy(&full).contains("DELETE /sandboxes/{id}"));
        assert!(remedy(&full.detail("path", "/tmp/x")).contains("PATCH /sandboxes/{id}"));
    }

    #[test]
    fn unsupported_by_host_remedy_is_for_the_operator() {
        let lacks = Error::new(Code::UnsupportedByHost, "no quota").remedy("install btrfs-progs");
        let remedy = remedy(&lacks);
        assert!(
            remedy.contains("operator") && remedy.ends_with("install btrfs-progs"),
            "{remedy}"
        );
    }
}

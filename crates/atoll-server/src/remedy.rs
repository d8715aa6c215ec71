//! Remedies in words of HTTP: routes, fields and headers. Errors of the parts below this crate are also shown by the
//! command line and speak of its commands, or of none.

use std::borrow::Cow;

use atoll_model::{Code, Error};

/// What a caller over HTTP can do about a failure; `None` if what the error says is right for it.
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
    use super::*;

    fn remedy(error: &Error) -> String {
        for_http(error).map_or_else(String::new, Cow::into_owned)
    }

    #[test]
    fn no_remedy_is_a_command_line() {
        for code in Code::ALL {
            let remedy = remedy(&Error::new(*code, "failed"));
            for word in ["atoll ", "curl", "--"] {
                assert!(!remedy.contains(word), "{code:?}: {remedy}");
            }
        }
    }

    #[test]
    fn a_full_disk_of_the_sandbox_and_of_the_server_differ() {
        let full = Error::new(Code::DiskFull, "full").remedy("free some space, or run atoll gc");
        assert!(remedy(&full).contains("DELETE /sandboxes/{id}"));
        assert!(remedy(&full.detail("path", "/tmp/x")).contains("PATCH /sandboxes/{id}"));
    }

    #[test]
    fn what_the_machine_lacks_is_for_its_operator() {
        let lacks = Error::new(Code::UnsupportedByHost, "no quota").remedy("install btrfs-progs");
        let remedy = remedy(&lacks);
        assert!(
            remedy.contains("operator") && remedy.ends_with("install btrfs-progs"),
            "{remedy}"
        );
    }
}

//! Finds out whether a command or terminal was killed because its sandbox ended.

use atoll_client::{Client, Exit, Request, path};
use atoll_model::{Category, Code, Error};
use serde_json::Value;

use super::super::server_args::{below, text};

/// Exit code of a command whose sandbox's lifetime ended: a deadline, as of `timeout(1)`.
const LIFETIME_ENDED: &str = "124";
/// SIGKILL, with which a sandbox that ends kills its commands.
const KILLED: i32 = 9;

/// Kind of process that ran in a sandbox that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lost {
    Command,
    Terminal,
}

/// If a command was killed with its sandbox, replaces its result by an error with the reason. Sends
/// a request only for commands that were killed or lost.
pub(crate) async fn explain_lost(
    client: &Client,
    sandbox: &str,
    lost: Lost,
    result: Result<Exit, Error>,
) -> Result<Exit, Error> {
    let is_suspect = match &result {
        Ok(exit) => is_killed(exit),
        Err(error) => {
            matches!(error.code.category(), Category::NotFound)
                || matches!(error.code, Code::SandboxStopped | Code::SandboxFailed)
        }
    };
    if !is_suspect {
        return result;
    }
    find_end(client, sandbox, lost).await.map_or(result, Err)
}

/// Whether the command may have been killed with its sandbox.
pub(crate) fn is_killed(exit: &Exit) -> bool {
    exit.signal == Some(KILLED) && !exit.oom_killed && !exit.timed_out
}

/// Why a sandbox ended, if it has.
pub(crate) async fn find_end(client: &Client, sandbox: &str, lost: Lost) -> Option<Error> {
    let found = last_known(client, sandbox).await?;
    ended(&found, sandbox, lost)
}

/// The sandbox in its current state, or in that of its deletion.
async fn last_known(client: &Client, sandbox: &str) -> Option<Value> {
    match client.send_json(&Request::get(below(sandbox, &[]))).await {
        Ok(found) => Some(found),
        Err(error) if error.code.category() == Category::NotFound => {
            let session = path(&["sessions", sandbox]);
            client.send_json(&Request::get(session)).await.ok()
        }
        Err(_) => None,
    }
}

/// The error to report if the sandbox has ended.
fn ended(sandbox: &Value, id: &str, lost: Lost) -> Option<Error> {
    let is_deleted = sandbox["deletedAt"].is_string();
    if !is_deleted && !matches!(text(sandbox, "state"), "stopping" | "stopped") {
        return None;
    }
    let name = match text(sandbox, "alias") {
        "" => id,
        alias => alias,
    };
    let (code, outcome) = if is_deleted {
        (Code::SandboxNotFound, "it was deleted with its files")
    } else {
        (Code::SandboxStopped, "it was stopped and keeps its files")
    };
    let during = match lost {
        Lost::Command => "while the command ran",
        Lost::Terminal => "while the terminal was open",
    };
    let error = match text(sandbox, "reason") {
        "timeout" => Error::new(
            code,
            format!("the lifetime of sandbox {name} ended: {outcome}"),
        )
        .remedy(if is_deleted {
            "`atoll sandbox create --timeout 1h` makes one that lives longer, --on-timeout stop one that keeps its files"
                .to_owned()
        } else {
            format!(
                "`atoll start {name}` runs it again; `atoll sandbox timeout {name} 1h` then gives it longer"
            )
        })
        .detail("exitCode", LIFETIME_ENDED),
        "" => Error::new(
            code,
            format!("sandbox {name} ended {during}: {outcome}"),
        )
        .remedy("a caller of the API did that; `atoll ls` shows what is left"),
        reason => Error::new(
            code,
            format!("sandbox {name} ended {during} ({reason}): {outcome}"),
        )
        .remedy("`atoll ls` shows what is left"),
    };
    Some(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_an_ended_sandbox_explains_a_killed_command() {
        let code = |sandbox: &Value| {
            let error = ended(sandbox, "i0", Lost::Command)?;
            Some((error.code, error.details.get("exitCode").cloned()))
        };
        let running = json!({ "state": "running" });
        assert_eq!(code(&running), None);
        let over = json!({ "state": "stopping", "reason": "timeout" });
        let deadline = Some(LIFETIME_ENDED.to_owned());
        assert_eq!(code(&over), Some((Code::SandboxStopped, deadline.clone())));
        let deleted =
            json!({ "state": "stopped", "reason": "timeout", "deletedAt": "2026-01-01T00:00:00Z" });
        assert_eq!(code(&deleted), Some((Code::SandboxNotFound, deadline)));
        let stopped = json!({ "state": "stopped" });
        assert_eq!(code(&stopped), Some((Code::SandboxStopped, None)));
    }
}

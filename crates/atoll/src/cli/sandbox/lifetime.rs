//! The end of a sandbox's lifetime and the action then, for tables and messages.

use jiff::Timestamp;
use serde_json::Value;

use super::super::server_args::text;
use super::list::span;

/// The `ENDS` column: `in 4m10s, stop`; `-` if its lifetime has no end.
pub(crate) fn until(sandbox: &Value) -> String {
    let lifetime = remaining(sandbox, "endAt").map(|left| (left, text(sandbox, "onTimeout")));
    // The files of a stopped sandbox.
    let retention = remaining(sandbox, "deleteAt").map(|left| (left, "destroy"));
    let lifetime = lifetime
        .or(retention)
        .map(|(left, action)| format!("in {}, {action}", span(left)));
    let idle = sandbox["idleTimeout"]
        .as_u64()
        .filter(|_| text(sandbox, "state") == "running")
        .map(|seconds| format!("idle {}, {}", span(seconds), text(sandbox, "onIdle")));
    let parts: Vec<String> = lifetime.into_iter().chain(idle).collect();
    if parts.is_empty() {
        return "-".to_owned();
    }
    parts.join("; ")
}

/// One sentence for the user who has just created the sandbox; `None` if its lifetime has no end.
pub(crate) fn notice(sandbox: &Value) -> Option<String> {
    let left = span(sandbox["timeout"].as_u64().filter(|seconds| *seconds > 0)?);
    let name = match text(sandbox, "alias") {
        "" => text(sandbox, "sandboxID"),
        alias => alias,
    };
    let outcome = match text(sandbox, "onTimeout") {
        "stop" => format!("stops in {left} and keeps its files"),
        "pause" => format!("is paused in {left}"),
        _ => format!("is deleted in {left}, with its files"),
    };
    Some(format!(
        "{name} {outcome}; `atoll sandbox timeout {name} 1h` changes that"
    ))
}

/// Whole seconds until a time of a sandbox; 0 if it has passed, `None` if the field is missing.
fn remaining(sandbox: &Value, field: &str) -> Option<u64> {
    let time: Timestamp = text(sandbox, field).parse().ok()?;
    let left = time.duration_since(Timestamp::now()).as_secs();
    Some(u64::try_from(left).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Tests that the time is this many seconds from now, with tolerance for a slow machine.
    fn after(seconds: i64) -> String {
        let later = Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
        later.to_string()
    }

    #[test]
    fn timeout_column_has_time_and_action() {
        let day = 86_400;
        let running = json!({
            "state": "running", "endAt": after(3 * day + 60), "onTimeout": "stop", "onIdle": "pause",
        });
        assert_eq!(until(&running), "in 3d00h, stop");
        let idle = json!({
            "state": "running", "endAt": after(3 * day + 60), "onTimeout": "destroy",
            "idleTimeout": 600, "onIdle": "pause",
        });
        assert_eq!(until(&idle), "in 3d00h, destroy; idle 10m00s, pause");
        let stopped = json!({
            "state": "stopped", "deleteAt": after(9 * day + 60), "onTimeout": "stop",
            "idleTimeout": 600, "onIdle": "pause",
        });
        assert_eq!(until(&stopped), "in 9d00h, destroy");
        let endless = json!({
            "state": "running", "endAt": null, "timeout": 0, "onTimeout": "destroy",
        });
        assert_eq!(until(&endless), "-");
        assert_eq!(notice(&endless), None);
        let overdue = json!({ "state": "running", "endAt": after(-60), "onTimeout": "pause" });
        assert_eq!(until(&overdue), "in 0s, pause");
    }

    #[test]
    fn notice_states_whether_files_are_kept() {
        let mut sandbox = json!({
            "sandboxID": "i0", "alias": "web", "timeout": 3600, "onTimeout": "stop",
        });
        let advice = "`atoll sandbox timeout web 1h` changes that";
        let kept = format!("web stops in 1h00m and keeps its files; {advice}");
        assert_eq!(notice(&sandbox), Some(kept));
        sandbox["onTimeout"] = json!("destroy");
        let deleted = format!("web is deleted in 1h00m, with its files; {advice}");
        assert_eq!(notice(&sandbox), Some(deleted));
    }
}

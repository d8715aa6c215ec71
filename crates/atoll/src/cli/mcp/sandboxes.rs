//! Tools for sandboxes themselves.

use atoll_client::{Request, query};
use atoll_model::Error;
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::super::sandbox::state;
use super::super::server_args::text;
use super::output::{ListOutput, ToolOutput};
use super::tools::{Sandbox, Tool, ToolContext, ToolEffect, ToolInfo};

/// Maximum number of listed sandboxes.
const MOST: usize = 100;

/// Id of a sandbox, and its name if it has one.
fn titled(sandbox: &Value) -> String {
    match (text(sandbox, "sandboxID"), text(sandbox, "alias")) {
        (id, "") => id.to_owned(),
        (id, alias) => format!("{id} ({alias})"),
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateSandbox {
    /// Name of the sandbox: a-z, 0-9 and -.
    name: Option<String>,
    /// Template to start from; default: that of the session.
    template: Option<String>,
}

impl Tool for CreateSandbox {
    const ABOUT: ToolInfo = ToolInfo {
        name: "create_sandbox",
        title: "Create a sandbox",
        description: "Make another sandbox, beside the session's own, which needs no call. Tools use it when its id or name is their `sandbox`.",
        nature: ToolEffect::Adds,
        sandbox: Sandbox::None,
    };

    async fn call_tool(self, place: ToolContext<'_>) -> Result<ToolOutput, Error> {
        let mut result = Map::new();
        for (name, value) in [("alias", self.name), ("template", self.template)] {
            result.extend(value.map(|value| (name.to_owned(), json!(value))));
        }
        let made = place.session.make(result).await?;
        let text = format!("made the sandbox {}", titled(&made));
        Ok(ToolOutput::new(text))
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListSandboxes {}

impl Tool for ListSandboxes {
    const ABOUT: ToolInfo = ToolInfo {
        name: "list_sandboxes",
        title: "List sandboxes",
        description: "List the sandboxes that there are, newest first, at most 100.",
        nature: ToolEffect::Reads,
        sandbox: Sandbox::None,
    };

    async fn call_tool(self, place: ToolContext<'_>) -> Result<ToolOutput, Error> {
        let limit = MOST.to_string();
        let request = Request::get(query("/sandboxes", &[("limit", &limit)]));
        let answer = place.client.send_buffered(&request).await?;
        let (usual, listed) = (place.session.usual().await, answer.json()?);
        let mut rows = ListOutput::new(answer.next.is_some());
        for sandbox in listed.as_array().into_iter().flatten() {
            let id = text(sandbox, "sandboxID");
            let own = usual.as_deref() == Some(id);
            let mark = if own { ", the session's own" } else { "" };
            let name = titled(sandbox);
            rows.push(format!("{name}: {}{mark}", state(sandbox)));
        }
        Ok(rows.into_output("there are none", "[there are more]"))
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RemoveSandbox {}

impl Tool for RemoveSandbox {
    const ABOUT: ToolInfo = ToolInfo {
        name: "remove_sandbox",
        title: "Remove a sandbox",
        description: "Remove a sandbox with everything that runs in it and all its files. It does not come back.",
        nature: ToolEffect::Replaces,
        sandbox: Sandbox::Named,
    };

    async fn call_tool(self, place: ToolContext<'_>) -> Result<ToolOutput, Error> {
        place.session.remove(&place.sandbox).await?;
        let text = format!("removed the sandbox {}", place.sandbox);
        Ok(ToolOutput::new(text))
    }
}

//! Lists, searches and removes files.

use atoll_client::Request;
use atoll_model::Error;
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde_json::Value;

use crate::cli::mcp::output::{ListOutput, ToolOutput, short};
use crate::cli::mcp::tools::{Sandbox, Tool, ToolContext, ToolEffect, ToolInfo};
use crate::cli::server_args::{file_call, text};

/// Maximum number of entries, and of matches.
const ENTRIES: usize = 500;
const FOUND: usize = 100;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::cli::mcp) struct ListFiles {
    /// Directory to list; default: the user's home.
    path: Option<String>,
    /// Number of levels; default: 1.
    depth: Option<u32>,
}

impl Tool for ListFiles {
    const ABOUT: ToolInfo = ToolInfo {
        name: "list_files",
        title: "List files",
        description: "List a directory, or a tree of them, at most 500 entries. Directories end in /.",
        nature: ToolEffect::Reads,
        sandbox: Sandbox::Usual,
    };

    async fn call_tool(self, place: ToolContext<'_>) -> Result<ToolOutput, Error> {
        let path = self.path.as_deref().unwrap_or(".");
        let (depth, limit) = (
            self.depth.unwrap_or(1).to_string(),
            (ENTRIES + 1).to_string(),
        );
        let parameters = [("path", path), ("depth", &depth), ("limit", &limit)];
        let request = Request::get(file_call(&place.sandbox, &["list"], &parameters, None));
        let all = place.client.send_json(&request).await?;
        let all = all.as_array().map_or(&[][..], Vec::as_slice);
        let mut rows = ListOutput::new(all.len() > ENTRIES);
        for entry in all.iter().take(ENTRIES) {
            rows.push(line(entry));
        }
        let more = "[there is more: name a smaller directory, or search]";
        Ok(rows.into_output("[empty]", more))
    }
}

/// Formats an entry as a line.
fn line(entry: &Value) -> String {
    let path = text(entry, "path");
    match text(entry, "type") {
        "directory" => format!("{path}/"),
        "link" => format!("{path} -> {}", text(entry, "target")),
        _ => format!("{path} ({} bytes)", entry["size"]),
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::cli::mcp) struct SearchFiles {
    /// Directory to search recursively; default: the user's home.
    path: Option<String>,
    /// Pattern of file names, such as *.py, or part of a name.
    name: Option<String>,
    /// Literal text to find in files.
    content: Option<String>,
}

impl Tool for SearchFiles {
    const ABOUT: ToolInfo = ToolInfo {
        name: "search_files",
        title: "Search files",
        description: "Find files by their names, by text in them, or by both; at most 100 matches are returned.",
        nature: ToolEffect::Reads,
        sandbox: Sandbox::Usual,
    };

    async fn call_tool(self, place: ToolContext<'_>) -> Result<ToolOutput, Error> {
        let limit = FOUND.to_string();
        let mut parameters = vec![
            ("path", self.path.as_deref().unwrap_or(".")),
            ("limit", &limit),
        ];
        parameters.extend(self.name.as_deref().map(|name| ("query", name)));
        parameters.extend(self.content.as_deref().map(|content| ("content", content)));
        if parameters.iter().all(|(_, value)| value.is_empty()) || parameters.len() == 2 {
            let message = "nothing is looked for";
            return Err(Error::invalid(
                "name",
                message,
                "give name, content or both",
            ));
        }
        let request = Request::get(file_call(&place.sandbox, &["search"], &parameters, None));
        let found = place.client.send_json(&request).await?;
        let mut rows = ListOutput::new(found["truncated"].as_bool().unwrap_or(false));
        for result in found["results"].as_array().into_iter().flatten() {
            let Some(found) = result["text"].as_str().map(short) else {
                rows.push(line(result));
                continue;
            };
            let path = text(result, "path");
            rows.push(format!("{path}:{}: {found}", result["line"]));
        }
        let more = "[there is more, or it took too long: look for less]";
        Ok(rows.into_output("nothing was found", more))
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::cli::mcp) struct RemoveFile {
    /// Path of the file or directory.
    path: String,
    /// Remove a directory with its contents.
    #[serde(default)]
    recursive: bool,
}

impl Tool for RemoveFile {
    const ABOUT: ToolInfo = ToolInfo {
        name: "remove_file",
        title: "Remove a file",
        description: "Remove a file, an empty directory or, if `recursive` is true, a directory with all that is below.",
        nature: ToolEffect::Replaces,
        sandbox: Sandbox::Usual,
    };

    async fn call_tool(self, place: ToolContext<'_>) -> Result<ToolOutput, Error> {
        let recursive = self.recursive.to_string();
        let parameters = [("path", self.path.as_str()), ("recursive", &recursive)];
        let call = file_call(&place.sandbox, &[], &parameters, None);
        place.client.send_buffered(&Request::delete(call)).await?;
        let text = format!("removed {}", self.path);
        Ok(ToolOutput::new(text))
    }
}

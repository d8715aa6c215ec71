//! Writes whole files.

use atoll_model::Error;
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;

use crate::cli::mcp::output::ToolOutput;
use crate::cli::mcp::tools::{Sandbox, Tool, ToolContext, ToolEffect, ToolInfo};
use crate::cli::server_args::text;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::cli::mcp) struct WriteFile {
    /// Path of the file; relative paths start at the user's home.
    path: String,
    /// New contents of the file.
    content: String,
}

impl Tool for WriteFile {
    const ABOUT: ToolInfo = ToolInfo {
        name: "write_file",
        title: "Write a file",
        description: "Write a text file. Missing directories are made, and a file that is there is replaced.",
        nature: ToolEffect::Replaces,
        sandbox: Sandbox::Usual,
    };

    async fn call_tool(self, place: ToolContext<'_>) -> Result<ToolOutput, Error> {
        let _alone = place.session.edits.lock().await;
        let size = self.content.len();
        let written = place.put(&self.path, self.content).await?;
        let path = text(&written, "path");
        let message = format!("wrote {size} bytes to {path}");
        Ok(ToolOutput::new(message))
    }
}

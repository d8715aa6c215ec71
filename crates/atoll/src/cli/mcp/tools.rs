//! The tools: their descriptions for hosts, and the dispatch of calls.
//!
//! To add a tool: define a struct of its arguments (agents read its doc comments), implement
//! [`Tool`] and add its name to `tools!`.

use std::sync::Arc;

use atoll_client::Client;
use atoll_model::{Code, Error, Network};
use rmcp::handler::server::tool::schema_for_input;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, Implementation, JsonObject,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool as Listed,
    ToolAnnotations,
};
use rmcp::schemars::JsonSchema;
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::output::{ToolOutput, failed};
use super::session::{SandboxScope, Session};
use super::{command, files, sandboxes};

/// Static description of a tool.
#[derive(Debug)]
pub(super) struct ToolInfo {
    pub(super) name: &'static str,
    /// Title for users.
    pub(super) title: &'static str,
    /// Description for agents.
    pub(super) description: &'static str,
    pub(super) nature: ToolEffect,
    pub(super) sandbox: Sandbox,
}

/// How a tool may change existing data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ToolEffect {
    /// Reads only.
    Reads,
    /// Adds data.
    Adds,
    /// Overwrites or deletes data; repeated calls have no further effect.
    Replaces,
    /// Overwrites or deletes data; repeated calls may change more.
    Changes,
    /// Runs a program, whose effects are unknown and may reach other systems.
    Runs,
}

/// Whether a tool takes a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sandbox {
    /// Takes a sandbox; the default is that of the session.
    Usual,
    /// Requires the name of a sandbox.
    Named,
    None,
}

/// Context of a call.
pub(super) struct ToolContext<'a> {
    pub(super) session: &'a Session,
    pub(super) client: &'a Client,
    /// Id or name of the sandbox; empty for tools that take none.
    pub(super) sandbox: String,
    pub(super) context: &'a RequestContext<RoleServer>,
}

/// A tool with its arguments.
pub(super) trait Tool: DeserializeOwned + JsonSchema + Send + 'static {
    const ABOUT: ToolInfo;
    fn call_tool(
        self,
        place: ToolContext<'_>,
    ) -> impl Future<Output = Result<ToolOutput, Error>> + Send;
}

macro_rules! tools {
    ($( $tool:ty ),* $(,)?) => {
        const ABOUT: &[ToolInfo] = &[$( <$tool>::ABOUT ),*];

        fn schema(name: &str) -> Result<Arc<JsonObject>, String> {
            $( if name == <$tool>::ABOUT.name { return schema_for_input::<$tool>(); } )*
            Err(format!("there is no tool {name:?}"))
        }

        async fn call(
            session: &Session,
            name: &str,
            given: JsonObject,
            context: &RequestContext<RoleServer>,
        ) -> Result<ToolOutput, Error> {
            $( if name == <$tool>::ABOUT.name { return call_tool::<$tool>(session, given, context).await; } )*
            Err(Error::new(Code::NotFound, format!("there is no tool {name:?}")))
        }
    };
}

tools! {
    command::RunCommand,
    files::read::ReadFile,
    files::write::WriteFile,
    files::edit::EditFile,
    files::tree::ListFiles,
    files::tree::SearchFiles,
    files::tree::RemoveFile,
    sandboxes::CreateSandbox,
    sandboxes::ListSandboxes,
    sandboxes::RemoveSandbox,
}

/// Executes one call.
async fn call_tool<T: Tool>(
    session: &Session,
    mut given: JsonObject,
    context: &RequestContext<RoleServer>,
) -> Result<ToolOutput, Error> {
    let takes = T::ABOUT.sandbox != Sandbox::None && session.is_free();
    let named = takes.then(|| given.remove("sandbox")).flatten();
    let named = match named {
        None | Some(Value::Null) => None,
        Some(Value::String(name)) if !name.is_empty() => Some(name),
        Some(_) => {
            return Err(misused(
                "sandbox",
                "sandbox: the id or the name of a sandbox",
            ));
        }
    };
    let tool: T = serde_path_to_error::deserialize(Value::Object(given)).map_err(|error| {
        let (path, why) = (error.path().to_string(), error.inner().to_string());
        match path.as_str() {
            "." => misused("arguments", &why),
            path => misused(path, &format!("{path}: {why}")),
        }
    })?;
    // This future is not cancelled, so every created sandbox is recorded.
    let sandbox = match T::ABOUT.sandbox {
        Sandbox::None => String::new(),
        Sandbox::Usual => session.sandbox(named.as_deref()).await?,
        Sandbox::Named => named.ok_or_else(|| misused("sandbox", "sandbox is missing"))?,
    };
    let place = ToolContext {
        session,
        client: &session.client,
        sandbox: sandbox.clone(),
        context,
    };
    let worked = tool.call_tool(place);
    let done = if T::ABOUT.nature == ToolEffect::Reads {
        tokio::select! {
            done = worked => done,
            () = context.ct.cancelled() => Err(cancelled()),
        }
    } else {
        worked.await
    };
    match done {
        Err(error) => Err(session.explain(&sandbox, error).await),
        result => result,
    }
}

fn misused(field: &str, message: &str) -> Error {
    Error::invalid(field, message, "see the tool's input schema")
}

/// The host is gone.
pub(super) fn cancelled() -> Error {
    Error::new(Code::Conflict, "the call was cancelled")
}

/// The MCP server of a session.
pub(super) struct Server {
    session: Arc<Session>,
}

impl Server {
    pub(super) fn new(session: Arc<Session>) -> Self {
        Self { session }
    }

    /// A session with a fixed sandbox has no tools to manage others.
    fn has(&self, about: &ToolInfo) -> bool {
        about.sandbox == Sandbox::Usual || self.session.is_free()
    }

    fn listed(&self, about: &'static ToolInfo) -> Result<Listed, ErrorData> {
        let schema = schema(about.name).map_err(|error| ErrorData::internal_error(error, None))?;
        let mut schema = plain(&schema);
        let fields = schema.entry("properties").or_insert_with(|| json!({}));
        if about.sandbox != Sandbox::None && self.session.is_free() {
            let description = match about.sandbox {
                Sandbox::Named => "Id or name of the sandbox.",
                _ => "Id or name of the sandbox; the session's own if left out.",
            };
            fields["sandbox"] = json!({ "type": "string", "description": description });
        }
        if about.sandbox == Sandbox::Named {
            schema.insert("required".into(), json!(["sandbox"]));
        }
        let nature = about.nature;
        let hints = ToolAnnotations::with_title(about.title)
            .read_only(nature == ToolEffect::Reads)
            .destructive(!matches!(nature, ToolEffect::Reads | ToolEffect::Adds))
            .idempotent(matches!(nature, ToolEffect::Reads | ToolEffect::Replaces))
            .open_world(nature == ToolEffect::Runs);
        let listed = Listed::new(about.name, about.description, schema);
        Ok(listed.with_title(about.title).with_annotations(hints))
    }

    fn instructions(&self) -> String {
        let begin = "Work in isolated Linux sandboxes, with commands and files. Relative paths start at the user's home.";
        match &self.session.whose {
            SandboxScope::Given(name) => format!("{begin} All tools work in the sandbox {name}."),
            SandboxScope::Own { network, .. } => {
                let network = match network {
                    Network::None => "Sandboxes have no network.",
                    Network::Internet => "Sandboxes reach the internet.",
                };
                format!(
                    "{begin} Tools that name no sandbox share one of this session's own, made at the first call. {network} \
                     What the session made is removed, with its files, when it ends."
                )
            }
        }
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let tools = ServerCapabilities::builder().enable_tools().build();
        ServerConfig::new(tools)
            .with_server_info(Implementation::new("atoll", env!("CARGO_PKG_VERSION")))
            .with_instructions(self.instructions())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let all = ABOUT.iter().filter(|about| self.has(about));
        let all: Result<Vec<Listed>, ErrorData> = all.map(|about| self.listed(about)).collect();
        Ok(ListToolsResult::with_all_items(all?))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let name = request.name.as_ref();
        if !ABOUT
            .iter()
            .any(|about| about.name == name && self.has(about))
        {
            let message = format!("there is no tool {name:?}");
            return Err(ErrorData::invalid_params(message, None));
        }
        let _shared = self.session.calls.read().await;
        let given = request.arguments.unwrap_or_default();
        let done = call(&self.session, name, given, &context).await;
        let result = done.map_or_else(|error| failed(&error), CallToolResult::from);
        Ok(result.into())
    }
}

/// JSON schema in the form that most hosts and models accept: an optional field has one type and is
/// not required.
fn plain(schema: &JsonObject) -> JsonObject {
    let mut schema = schema.clone();
    schema.remove("$schema");
    let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
    for field in fields.into_iter().flat_map(|fields| fields.values_mut()) {
        let Some(field) = field.as_object_mut() else {
            continue;
        };
        for noise in ["format", "default"] {
            field.remove(noise);
        }
        if let Some(Value::Array(kinds)) = field.get_mut("type") {
            kinds.retain(|kind| kind != "null");
            if let [kind] = kinds.as_slice() {
                let kind = kind.clone();
                field.insert("type".into(), kind);
            }
        }
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_is_documented() {
        let text = include_str!("../../../../../docs/guides/agents-and-mcp.md");
        for ToolInfo { name, .. } in ABOUT {
            assert!(text.contains(&format!("`{name}`")), "{name}");
        }
    }
}

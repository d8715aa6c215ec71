//! In which sandbox a file call works, and as whom: found out once, before what the call is about.

use atoll_core::Use;
use atoll_model::{Authority, Caller as FileCaller, SandboxId, Scope};
use atoll_worker::LocalRuntime;
use axum::extract::FromRequestParts;
use axum::http::Method;
use axum::http::request::Parts;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::App;
use crate::error::Failure;
use crate::extract::{Path, split_query};
use crate::middleware::Caller;
use crate::malformed::read_query;

/// Whose rights count.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Authority)]
#[serde(rename_all = "lowercase")]
pub(super) enum Rights {
    #[default]
    User,
    /// The sandbox's root's; what is made belongs to the user.
    Root,
}

impl From<Rights> for Authority {
    fn from(rights: Rights) -> Self {
        match rights {
            Rights::User => Self::User,
            Rights::Root => Self::Root,
        }
    }
}

/// As whom, in every file call's query.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct As {
    /// Name or number; the template's if nothing is said. Relative paths and `~` start at its home.
    user: Option<String>,
    #[serde(default)]
    authority: Rights,
}

/// A sandbox whose files the caller may work on now.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) used: Use,
    pub(super) who: FileCaller,
}

impl Files {
    pub(super) fn runtime(&self) -> &LocalRuntime {
        self.used.runtime()
    }

    pub(super) fn id(&self) -> &SandboxId {
        self.used.id()
    }

    /// As somebody else, where that is said.
    pub(super) fn acting(mut self, user: Option<String>, rights: Option<Rights>) -> Self {
        self.who.user = user.or(self.who.user);
        self.who.authority = rights.map_or(self.who.authority, Authority::from);
        self
    }
}

impl FromRequestParts<App> for Files {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Failure> {
        let Caller(caller) = Caller::from_request_parts(parts, app).await?;
        let id = Path::<String>::from_request_parts(parts, app).await;
        let id = id.map_or_else(|_| String::new(), |Path(id)| id);
        // What is left of the query is the route's own.
        let own = split_query(&mut parts.uri, &["user", "authority"]);
        let As { user, authority } = read_query(&own)?;
        let scope = match parts.method {
            Method::GET | Method::HEAD => Scope::Read,
            _ => Scope::Sandboxes,
        };
        let used = app.core.enter(&caller, &id, scope).await?;
        let authority = authority.into();
        let who = FileCaller { user, authority };
        Ok(Self { used, who })
    }
}

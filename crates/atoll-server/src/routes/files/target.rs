//! Extractor for the sandbox and the user of a file request. It authenticates and opens the sandbox
//! before the route runs.

use atoll_core::SandboxAccess;
use atoll_model::runtime::Runtime;
use atoll_model::{Authority, RunAs, SandboxId, Scope};
use axum::extract::FromRequestParts;
use axum::http::Method;
use axum::http::request::Parts;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::AppState;
use crate::auth::Authenticated;
use crate::error::ApiError;
use crate::extract::{Path, take_query_params};
use crate::malformed::read_query;

/// The permissions that apply.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = Authority)]
#[serde(rename_all = "lowercase")]
pub(super) enum AuthorityParam {
    #[default]
    User,
    /// Permissions of the sandbox's root; created files belong to the user.
    Root,
}

impl From<AuthorityParam> for Authority {
    fn from(authority: AuthorityParam) -> Self {
        match authority {
            AuthorityParam::User => Self::User,
            AuthorityParam::Root => Self::Root,
        }
    }
}

/// Query parameters for the user, in every file request.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RunAsQuery {
    /// Name or UID; default: the template's user. Relative paths and `~` start at its home.
    user: Option<String>,
    #[serde(default)]
    authority: AuthorityParam,
}

/// An open sandbox, and the user whose files are accessed.
#[derive(Debug)]
pub(super) struct FileTarget {
    pub(super) access: SandboxAccess,
    pub(super) run_as: RunAs,
}

impl FileTarget {
    pub(super) fn runtime(&self) -> &dyn Runtime {
        self.access.runtime()
    }

    pub(super) fn id(&self) -> &SandboxId {
        self.access.id()
    }

    /// Overrides the user and the authority.
    pub(super) fn with_run_as(
        mut self,
        user: Option<String>,
        authority: Option<AuthorityParam>,
    ) -> Self {
        self.run_as.user = user.or(self.run_as.user);
        self.run_as.authority = authority.map_or(self.run_as.authority, Authority::from);
        self
    }
}

impl FromRequestParts<AppState> for FileTarget {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ApiError> {
        let Authenticated(caller) = Authenticated::from_request_parts(parts, app).await?;
        let id = Path::<String>::from_request_parts(parts, app).await;
        let id = id.map_or_else(|_| String::new(), |Path(id)| id);
        // The route parses the remaining query.
        let own = take_query_params(&mut parts.uri, &["user", "authority"]);
        let RunAsQuery { user, authority } = read_query(&own)?;
        let scope = match parts.method {
            Method::GET | Method::HEAD => Scope::Read,
            _ => Scope::Sandboxes,
        };
        let access = app.access.open(&caller, &id, scope).await?;
        let authority = authority.into();
        let run_as = RunAs { user, authority };
        Ok(Self { access, run_as })
    }
}

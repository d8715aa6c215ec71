//! On whose behalf something is done.

use atoll_model::{Code, Error, KeyId, Org, RequestId, Scope};

/// A caller who is known.
#[derive(Debug, Clone)]
pub struct RequestContext {
    /// Whose sandboxes are meant.
    pub org: Org,
    /// By which key the caller is known; nothing is the operator.
    pub key: Option<KeyId>,
    /// What the caller may do.
    pub scope: Scope,
    /// When the key ends: microseconds since 1970.
    pub expires_at: Option<i64>,
    /// The request, in the log and in answers.
    pub request: RequestId,
}

impl RequestContext {
    /// Refuses a caller who may not do this.
    pub fn require(&self, scope: Scope) -> Result<(), Error> {
        if self.scope.allows(scope) {
            return Ok(());
        }
        let remedy = match scope {
            Scope::Admin => "use an admin's key, or the operator's socket on the server's machine",
            _ => "use a key with the scope sandbox:*",
        };
        Err(Error::new(Code::PermissionDenied, "this key may not do that").remedy(remedy))
    }
}

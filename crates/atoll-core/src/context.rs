//! Authenticated caller of a request.

use atoll_model::{Code, Error, KeyId, Org, RequestId, Scope};

/// An authenticated caller and the request that it makes.
#[derive(Debug, Clone)]
pub struct RequestContext {
    /// The org whose sandboxes the caller may access.
    pub org: Org,
    /// Key that authenticated the request. `None`: the operator's Unix socket or `--dev`.
    pub key: Option<KeyId>,
    /// Permissions of the caller.
    pub scope: Scope,
    /// Expiry of the key in microseconds since 1970.
    pub expires_at: Option<i64>,
    /// Id of the request, for logs and responses.
    pub request: RequestId,
}

impl RequestContext {
    /// Returns 403 unless the caller has the required scope.
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

//! Links that are signed by whoever has a sandbox's token: one file, one way, as one user, perhaps until a time.
//!
//! E2B's clients leave the sandbox's id out of such a link where all sandboxes have one address (`E2B_SANDBOX_URL`). The
//! signature is a hash over the sandbox's token, so the only way to the sandbox is to try: the newest ones, so that a
//! request without a credential costs the same however many sandboxes there are.

use std::net::IpAddr;

use atoll_core::{Core, SandboxRef, TokenScope};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::e2b::error::E2bError;
use crate::e2b::lenient::WithUnknownFields;
use crate::e2b::router;

/// The longest path that is compared: no file has a longer one.
const MAX_PATH_BYTES: usize = 4096;
/// In how many sandboxes a link without an id is looked for: those that were created last.
const MAX_SEARCHED: usize = 256;

/// What stands behind the question mark of `/files`.
#[derive(Debug, Default, Deserialize)]
pub(in crate::e2b) struct SignedQuery {
    #[serde(default)]
    pub(super) path: Option<String>,
    #[serde(default)]
    pub(super) username: Option<String>,
    #[serde(default)]
    signature: Option<String>,
    #[serde(default)]
    signature_expiration: Option<i64>,
}

impl SignedQuery {
    /// As a request is read that is going to be answered.
    pub(super) fn from_uri(uri: &Uri) -> Result<Self, E2bError> {
        Ok(Self::read(uri.query().unwrap_or_default())?.log_unknown())
    }

    fn parse(query: &str) -> Result<Self, E2bError> {
        Ok(Self::read(query)?.into_inner())
    }

    fn read(query: &str) -> Result<WithUnknownFields<Self>, E2bError> {
        serde_urlencoded::from_str(query).map_err(|error| {
            let message = format!("the query cannot be read: {error}");
            E2bError::new(StatusCode::BAD_REQUEST, message)
        })
    }

    /// Its signature, if it has one that some token may have made.
    fn signature(&self, method: &Method) -> Option<Signature> {
        let claimed = self.signature.as_deref()?.strip_prefix("v1_")?;
        let claimed = STANDARD_NO_PAD.decode(claimed).ok()?;
        let path = self.path.as_deref().unwrap_or_default();
        if path.len() > MAX_PATH_BYTES {
            return None;
        }
        let action = match *method {
            Method::GET | Method::HEAD => "read",
            _ => "write",
        };
        let user = self.username.as_deref().unwrap_or_default();
        let before = Sha256::new_with_prefix(format!("{path}:{action}:{user}:"));
        let expiry = self.signature_expiration;
        Some(Signature {
            claimed,
            before,
            after: expiry.map_or_else(String::new, |expiry| format!(":{expiry}")),
        })
    }

    /// Whether this sandbox's token signed it.
    fn is_signed_by(&self, sandbox: &SandboxRef, method: &Method) -> bool {
        let signature = self.signature(method);
        signature.is_some_and(|signature| signature.is_made_by(sandbox))
    }

    /// Lets in who shows the sandbox's token or a link that it signed, in the order and the words of their daemon.
    pub(super) fn authorize(
        &self,
        sandbox: &SandboxRef,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<(), E2bError> {
        let unauthorized = |message: &str| Err(E2bError::new(StatusCode::UNAUTHORIZED, message));
        if headers.contains_key("x-access-token") {
            return if router::presents_token(sandbox, TokenScope::Data, headers) {
                Ok(sandbox.check_rate()?)
            } else {
                unauthorized("access token present in header but does not match")
            };
        }
        if self.signature.is_none() {
            return unauthorized("missing signature query parameter");
        }
        if !self.is_signed_by(sandbox, method) {
            return unauthorized("invalid signature");
        }
        let now = jiff::Timestamp::now().as_second();
        if self.signature_expiration.is_some_and(|until| until < now) {
            return unauthorized("signature is already expired");
        }
        Ok(sandbox.check_rate()?)
    }
}

/// A signature, and what it is over: the token stands between two parts.
struct Signature {
    claimed: Vec<u8>,
    /// The state of the hash before the token, so that a long path is hashed once.
    before: Sha256,
    after: String,
}

impl Signature {
    fn is_made_by(&self, sandbox: &SandboxRef) -> bool {
        self.is_made_by_token(sandbox.token(TokenScope::Data))
    }

    fn is_made_by_token(&self, token: &str) -> bool {
        let hash = self.before.clone().chain_update(token);
        let hash = hash.chain_update(&self.after).finalize();
        hash.as_slice().ct_eq(&self.claimed).into()
    }
}

/// Whether this is the address of a signed link.
pub(in crate::e2b) fn is_signed(uri: &Uri) -> bool {
    let query = uri.query().unwrap_or_default();
    uri.path() == "/files" && SignedQuery::parse(query).is_ok_and(|query| query.signature.is_some())
}

/// Whether a query has a signature by a sandbox's token, for reading or for writing.
pub(in crate::e2b) fn is_signed_by(sandbox: &SandboxRef, query: &str) -> bool {
    is_signed_by_token(sandbox.token(TokenScope::Data), query)
}

/// The same for a token. Takes as long whether or not the token is that of a sandbox.
pub(in crate::e2b) fn is_signed_by_token(token: &str, query: &str) -> bool {
    let signed = |query: SignedQuery| {
        let methods = [Method::GET, Method::POST];
        let mut signatures = methods.iter().map(|method| query.signature(method));
        signatures
            .any(|signature| signature.is_some_and(|signature| signature.is_made_by_token(token)))
    };
    SignedQuery::parse(query).is_ok_and(signed)
}

/// The sandbox of a link that does not name it.
pub(in crate::e2b) fn find_sandbox(
    core: &Core,
    client: Option<IpAddr>,
    method: &Method,
    uri: &Uri,
) -> Result<SandboxRef, E2bError> {
    if let Some(client) = client {
        core.check_search_rate(client)?;
    }
    let signature = SignedQuery::parse(uri.query().unwrap_or_default())?.signature(method);
    let found = signature.and_then(|signature| {
        let mut newest = core.newest_unauthenticated(MAX_SEARCHED).into_iter();
        newest.find(|sandbox| signature.is_made_by(sandbox))
    });
    found.ok_or_else(|| E2bError::new(StatusCode::UNAUTHORIZED, "invalid signature"))
}

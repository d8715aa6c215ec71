//! Signed file URLs of E2B clients: one file, one action, one user and an optional expiry, signed
//! with the sandbox's token.
//!
//! If all sandboxes share one address (`E2B_SANDBOX_URL`), these URLs do not contain the sandbox
//! id. The signature is a hash over the token, so the server compares it with the tokens of the
//! most recently created sandboxes. The fixed number of them bounds the cost of a request without a
//! credential.

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

/// Maximum length of a signed path: the kernel's limit.
const MAX_PATH_BYTES: usize = 4096;
/// Number of sandboxes that are tried for a URL without an id, the newest first.
const MAX_SEARCHED: usize = 256;

/// Query of `/files`.
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
    /// Parses the query and logs unknown parameters.
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

    /// The signature, if it is well-formed.
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

    /// Whether this sandbox's token made the signature.
    fn is_signed_by(&self, sandbox: &SandboxRef, method: &Method) -> bool {
        let signature = self.signature(method);
        signature.is_some_and(|signature| signature.is_made_by(sandbox))
    }

    /// Checks the token or the signature, in the order and with the messages of envd.
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

/// A signature and the parts of the signed text before and after the token.
struct Signature {
    claimed: Vec<u8>,
    /// Hash state before the token, so that a long path is hashed once.
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

/// Whether this is a signed URL.
pub(in crate::e2b) fn is_signed(uri: &Uri) -> bool {
    let query = uri.query().unwrap_or_default();
    uri.path() == "/files" && SignedQuery::parse(query).is_ok_and(|query| query.signature.is_some())
}

/// Whether a query has a signature by the sandbox's token, for reading or writing.
pub(in crate::e2b) fn is_signed_by(sandbox: &SandboxRef, query: &str) -> bool {
    is_signed_by_token(sandbox.token(TokenScope::Data), query)
}

/// The same for a token. Constant time, whether or not a sandbox has the token.
pub(in crate::e2b) fn is_signed_by_token(token: &str, query: &str) -> bool {
    let signed = |query: SignedQuery| {
        let methods = [Method::GET, Method::POST];
        let mut signatures = methods.iter().map(|method| query.signature(method));
        signatures
            .any(|signature| signature.is_some_and(|signature| signature.is_made_by_token(token)))
    };
    SignedQuery::parse(query).is_ok_and(signed)
}

/// Finds the sandbox of a signed URL without an id.
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

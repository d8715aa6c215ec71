//! Links that are signed by whoever has a sandbox's token: one file, one way, as one user, perhaps until a time.
//!
//! Such a link may come without a word about its sandbox. Then it is for the one whose token signed it.

use atoll_core::{Core, Door, Doorstep};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::e2b::edge;
use crate::e2b::lenient::Noted;
use crate::e2b::refusal::Refusal;

/// The longest path that is compared: no file has a longer one.
const LONGEST: usize = 4096;

/// What stands behind the question mark of `/files`.
#[derive(Debug, Default, Deserialize)]
pub(in crate::e2b) struct Asked {
    #[serde(default)]
    pub(super) path: Option<String>,
    #[serde(default)]
    pub(super) username: Option<String>,
    #[serde(default)]
    signature: Option<String>,
    #[serde(default)]
    signature_expiration: Option<i64>,
}

impl Asked {
    /// As a request is read that is going to be answered.
    pub(super) fn told(uri: &Uri) -> Result<Self, Refusal> {
        Ok(Self::read(uri)?.told())
    }

    fn of(uri: &Uri) -> Result<Self, Refusal> {
        Ok(Self::read(uri)?.sent())
    }

    fn read(uri: &Uri) -> Result<Noted<Self>, Refusal> {
        let query = uri.query().unwrap_or_default();
        serde_urlencoded::from_str(query).map_err(|error| {
            let message = format!("the query cannot be read: {error}");
            Refusal::new(StatusCode::BAD_REQUEST, message)
        })
    }

    /// Whether this sandbox's token signed it.
    fn signed_by(&self, step: &Doorstep, method: &Method) -> bool {
        let Some(signature) = &self.signature else {
            return false;
        };
        let path = self.path.as_deref().unwrap_or_default();
        if path.len() > LONGEST {
            return false;
        }
        let act = match *method {
            Method::GET | Method::HEAD => "read",
            _ => "write",
        };
        let user = self.username.as_deref().unwrap_or_default();
        let mut signed = format!("{path}:{act}:{user}:{}", step.token(Door::Agent));
        if let Some(until) = self.signature_expiration {
            signed = format!("{signed}:{until}");
        }
        let right = STANDARD_NO_PAD.encode(Sha256::digest(signed));
        same(format!("v1_{right}").as_bytes(), signature.as_bytes())
    }

    /// Lets in who shows the sandbox's token or a link that it signed, in the order and the words of their daemon.
    pub(super) fn admit(
        &self,
        step: &Doorstep,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        let refused = |message: &str| Err(Refusal::new(StatusCode::UNAUTHORIZED, message));
        if headers.contains_key("x-access-token") {
            return if edge::shows_token(step, Door::Agent, headers) {
                Ok(step.count()?)
            } else {
                refused("access token present in header but does not match")
            };
        }
        if self.signature.is_none() {
            return refused("missing signature query parameter");
        }
        if !self.signed_by(step, method) {
            return refused("invalid signature");
        }
        let now = jiff::Timestamp::now().as_second();
        if self.signature_expiration.is_some_and(|until| until < now) {
            return refused("signature is already expired");
        }
        Ok(step.count()?)
    }
}

/// Whether this is the address of a signed link.
pub(in crate::e2b) fn is_there(uri: &Uri) -> bool {
    uri.path() == "/files" && Asked::of(uri).is_ok_and(|asked| asked.signature.is_some())
}

/// The sandbox that a link is for which does not say so.
pub(in crate::e2b) fn find(core: &Core, method: &Method, uri: &Uri) -> Result<Doorstep, Refusal> {
    let asked = Asked::of(uri)?;
    let mut steps = core.doorsteps().into_iter();
    let found = steps.find(|step| asked.signed_by(step, method));
    found.ok_or_else(|| Refusal::new(StatusCode::UNAUTHORIZED, "invalid signature"))
}

/// In a time that says nothing about how much is the same.
fn same(one: &[u8], other: &[u8]) -> bool {
    let pairs = one.iter().zip(other);
    let different = pairs.fold(0, |different, (one, other)| different | (one ^ other));
    one.len() == other.len() && different == 0
}

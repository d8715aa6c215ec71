//! Signed URLs: permit one action on one file of one sandbox, as one user, until a time, without an API key.
//!
//! The URL contains all of that in clear text, and a MAC over it. Nothing is stored, so a URL cannot be revoked.

use atoll_model::{Authority, Code, Error, RunAs, SandboxId, Scope};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::control::keys::hex;
use crate::live_sandboxes::not_found;
use crate::{Core, RequestContext, SandboxAccess};

/// Maximum validity in seconds.
pub(crate) const MAX_VALIDITY_SECS: u32 = 86_400;

/// Creates and verifies the MACs of signed URLs and access tokens.
pub struct Signer {
    mac: Hmac<Sha256>,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signer")
    }
}

impl Signer {
    /// Creates a signer from the secret of the data directory (`signing.key`).
    pub fn new(secret: &str) -> Result<Self, Error> {
        let damaged = || {
            Error::new(Code::Internal, "the secret that signs links is damaged").remedy(
                "remove signing.key of the data directory: links that were given away end with it",
            )
        };
        if secret.len() < 64 {
            return Err(damaged());
        }
        let mac = Hmac::new_from_slice(secret.as_bytes()).map_err(|_| damaged())?;
        Ok(Self { mac })
    }

    fn url_mac(&self, url: &SignedUrl) -> Hmac<Sha256> {
        let user = match &url.run_as.user {
            Some(user) => format!("={user}"),
            None => String::new(),
        };
        let fields = [
            "atoll link 1",
            url.action.name(),
            url.sandbox.as_str(),
            &url.path,
            &user,
            match url.run_as.authority {
                Authority::User => "user",
                Authority::Root => "root",
            },
            &url.expires.to_string(),
        ];
        self.mac_of(&fields)
    }

    fn mac_of(&self, fields: &[&str]) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        for field in fields {
            // The length prefix makes the encoding unambiguous.
            mac.update(&(field.len() as u64).to_be_bytes());
            mac.update(field.as_bytes());
        }
        mac
    }

    fn token_mac(&self, subject: &str, purpose: &str) -> Hmac<Sha256> {
        self.mac_of(&["atoll token 1", subject, purpose])
    }

    /// Computes a permanent token for a subject and a purpose.
    pub(crate) fn token(&self, subject: &str, purpose: &str) -> String {
        hex(&self.token_mac(subject, purpose).finalize().into_bytes())
    }

    pub(crate) fn verify_token(&self, subject: &str, purpose: &str, token: &str) -> bool {
        unhex(token).is_some_and(|bytes| {
            self.token_mac(subject, purpose)
                .verify_slice(&bytes)
                .is_ok()
        })
    }

    fn sign(&self, url: &SignedUrl) -> String {
        hex(&self.url_mac(url).finalize().into_bytes())
    }

    /// Verifies a signature in constant time.
    pub(crate) fn verify(&self, url: &SignedUrl, signature: &str) -> bool {
        unhex(signature).is_some_and(|bytes| self.url_mac(url).verify_slice(&bytes).is_ok())
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let byte = |at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(byte).collect()
}

/// The action that a signed URL permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UrlAction {
    /// Read the file.
    Download,
    /// Write the file.
    Upload,
}

impl UrlAction {
    /// Name of the action in URLs and in the MAC.
    pub fn name(self) -> &'static str {
        match self {
            Self::Download => "download",
            Self::Upload => "upload",
        }
    }
}

/// Content of a signed URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedUrl {
    /// The permitted action.
    pub action: UrlAction,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Path of the file.
    pub path: String,
    /// User and permissions of the file call.
    pub run_as: RunAs,
    /// Expiry in seconds since 1970.
    pub expires: i64,
}

impl Core {
    /// Creates a signed URL that is valid for some seconds. Returns its content and signature.
    pub fn sign_url(
        &self,
        context: &RequestContext,
        name: &str,
        (action, path, run_as): (UrlAction, String, RunAs),
        seconds: u32,
    ) -> Result<(SignedUrl, String), Error> {
        context.require(match action {
            UrlAction::Download => Scope::Read,
            UrlAction::Upload => Scope::Sandboxes,
        })?;
        if !(1..=MAX_VALIDITY_SECS).contains(&seconds) {
            let message = format!("expiresIn is {seconds}");
            let remedy = format!("give 1 to {MAX_VALIDITY_SECS} seconds");
            return Err(Error::invalid("expiresIn", message, remedy));
        }
        let entry = self.inner.sandboxes.find(&context.org.id, name)?;
        let url = SignedUrl {
            action,
            sandbox: entry.read(|row| row.id.clone()),
            path,
            run_as,
            expires: self.inner.clock.system() / 1_000_000 + i64::from(seconds),
        };
        let signature = self.inner.signer.sign(&url);
        Ok((url, signature))
    }

    /// Verifies a signed URL and opens its sandbox.
    pub async fn open_signed_url(
        &self,
        url: &SignedUrl,
        signature: &str,
    ) -> Result<SandboxAccess, Error> {
        let refused = |message| {
            let remedy = "request a new link";
            Err(Error::new(Code::PermissionDenied, message).remedy(remedy))
        };
        if !self.inner.signer.verify(url, signature) {
            return refused("the link's signature is invalid");
        }
        if url.expires <= self.inner.clock.system() / 1_000_000 {
            return refused("the link has expired");
        }
        let entry = self
            .inner
            .sandboxes
            .get(&url.sandbox)
            .ok_or_else(not_found)?;
        self.open_live(&entry).await
    }
}

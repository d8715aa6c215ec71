//! Signed links: whoever has one may read, or write, this one file of this one sandbox, as this user, until a time. The
//! link itself says all of that; what makes it good is a code over it that only this server can make.

use atoll_model::{Authority, Code, Error, RunAs, SandboxId, Scope};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::keys::hex;
use crate::live_sandboxes::not_found;
use crate::{Core, RequestContext, SandboxAccess};

/// The longest a link is good, in seconds.
pub(crate) const LONGEST: u32 = 86_400;

/// What signs links, and verify its own signatures.
pub struct Signer {
    mac: Hmac<Sha256>,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signer")
    }
}

impl Signer {
    /// Signs with a secret, which every server of a data directory must share.
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
            // With its length, so that no two links are the same bytes.
            mac.update(&(field.len() as u64).to_be_bytes());
            mac.update(field.as_bytes());
        }
        mac
    }

    fn token_mac(&self, of: &str, what: &str) -> Hmac<Sha256> {
        self.mac_of(&["atoll token 1", of, what])
    }

    /// A secret that belongs to something for good.
    pub(crate) fn token(&self, of: &str, what: &str) -> String {
        hex(&self.token_mac(of, what).finalize().into_bytes())
    }

    pub(crate) fn verify_token(&self, of: &str, what: &str, token: &str) -> bool {
        unhex(token).is_some_and(|bytes| self.token_mac(of, what).verify_slice(&bytes).is_ok())
    }

    fn sign(&self, url: &SignedUrl) -> String {
        hex(&self.url_mac(url).finalize().into_bytes())
    }

    /// In a time that says nothing about how much of it is right.
    pub(crate) fn verify(&self, url: &SignedUrl, signature: &str) -> bool {
        unhex(signature).is_some_and(|bytes| self.url_mac(url).verify_slice(&bytes).is_ok())
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let byte = |at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(byte).collect()
}

/// What a link is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UrlAction {
    /// Reading the file.
    Download,
    /// Writing it.
    Upload,
}

impl UrlAction {
    /// Its name in links.
    pub fn name(self) -> &'static str {
        match self {
            Self::Download => "download",
            Self::Upload => "upload",
        }
    }
}

/// What a link says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedUrl {
    /// What it is good for.
    pub action: UrlAction,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The file.
    pub path: String,
    /// As whom.
    pub run_as: RunAs,
    /// Until when: seconds since 1970.
    pub expires: i64,
}

impl Core {
    /// Makes a link that is good for so many seconds; its signature.
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
        if !(1..=LONGEST).contains(&seconds) {
            let message = format!("expiresIn is {seconds}");
            let remedy = format!("give 1 to {LONGEST} seconds");
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

    /// Lets whoever has a link use its sandbox for what it is good for.
    pub async fn open_signed_url(
        &self,
        url: &SignedUrl,
        signature: &str,
    ) -> Result<SandboxAccess, Error> {
        let refused = |message| {
            let remedy = "ask whoever gave it to you for another";
            Err(Error::new(Code::PermissionDenied, message).remedy(remedy))
        };
        if !self.inner.signer.verify(url, signature) {
            return refused("this link is not as it was given away");
        }
        if url.expires <= self.inner.clock.system() / 1_000_000 {
            return refused("the time of this link is over");
        }
        let entry = self
            .inner
            .sandboxes
            .get(&url.sandbox)
            .ok_or_else(not_found)?;
        self.open_live(entry).await
    }
}

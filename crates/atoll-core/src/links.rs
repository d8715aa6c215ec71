//! Signed links: whoever has one may read, or write, this one file of this one sandbox, as this user, until a time. The
//! link itself says all of that; what makes it good is a code over it that only this server can make.

use atoll_model::{Authority, Code, Error, RunAs, SandboxId, Scope};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::keys::hex;
use crate::ledger::unknown;
use crate::{Context, Core, Use};

/// The longest a link is good, in seconds.
pub(crate) const LONGEST: u32 = 86_400;

/// What signs links, and knows its own signatures.
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

    fn over(&self, link: &Link) -> Hmac<Sha256> {
        let user = match &link.who.user {
            Some(user) => format!("={user}"),
            None => String::new(),
        };
        let fields = [
            "atoll link 1",
            link.act.name(),
            link.sandbox.as_str(),
            &link.path,
            &user,
            match link.who.authority {
                Authority::User => "user",
                Authority::Root => "root",
            },
            &link.expires.to_string(),
        ];
        self.over_all(&fields)
    }

    fn over_all(&self, fields: &[&str]) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        for field in fields {
            // With its length, so that no two links are the same bytes.
            mac.update(&(field.len() as u64).to_be_bytes());
            mac.update(field.as_bytes());
        }
        mac
    }

    fn over_token(&self, of: &str, what: &str) -> Hmac<Sha256> {
        self.over_all(&["atoll token 1", of, what])
    }

    /// A secret that belongs to something for good.
    pub(crate) fn token(&self, of: &str, what: &str) -> String {
        hex(&self.over_token(of, what).finalize().into_bytes())
    }

    pub(crate) fn knows_token(&self, of: &str, what: &str, token: &str) -> bool {
        unhex(token).is_some_and(|bytes| self.over_token(of, what).verify_slice(&bytes).is_ok())
    }

    fn sign(&self, link: &Link) -> String {
        hex(&self.over(link).finalize().into_bytes())
    }

    /// In a time that says nothing about how much of it is right.
    pub(crate) fn knows(&self, link: &Link, signature: &str) -> bool {
        unhex(signature).is_some_and(|bytes| self.over(link).verify_slice(&bytes).is_ok())
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let byte = |at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(byte).collect()
}

/// What a link is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Reading the file.
    Download,
    /// Writing it.
    Upload,
}

impl Act {
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
pub struct Link {
    /// What it is good for.
    pub act: Act,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The file.
    pub path: String,
    /// As whom.
    pub who: RunAs,
    /// Until when: seconds since 1970.
    pub expires: i64,
}

impl Core {
    /// Makes a link that is good for so many seconds; its signature.
    pub fn sign_link(
        &self,
        context: &Context,
        name: &str,
        (act, path, who): (Act, String, RunAs),
        seconds: u32,
    ) -> Result<(Link, String), Error> {
        context.require(match act {
            Act::Download => Scope::Read,
            Act::Upload => Scope::Sandboxes,
        })?;
        if !(1..=LONGEST).contains(&seconds) {
            let message = format!("expiresIn is {seconds}");
            let remedy = format!("give 1 to {LONGEST} seconds");
            return Err(Error::invalid("expiresIn", message, remedy));
        }
        let entry = self.inner.ledger.find(&context.org.id, name)?;
        let link = Link {
            act,
            sandbox: entry.with(|row| row.id.clone()),
            path,
            who,
            expires: self.inner.clock.system() / 1_000_000 + i64::from(seconds),
        };
        let signature = self.inner.signer.sign(&link);
        Ok((link, signature))
    }

    /// Lets whoever has a link use its sandbox for what it is good for.
    pub async fn follow_link(&self, link: &Link, signature: &str) -> Result<Use, Error> {
        let refused = |message| {
            let remedy = "ask whoever gave it to you for another";
            Err(Error::new(Code::PermissionDenied, message).remedy(remedy))
        };
        if !self.inner.signer.knows(link, signature) {
            return refused("this link is not as it was given away");
        }
        if link.expires <= self.inner.clock.system() / 1_000_000 {
            return refused("the time of this link is over");
        }
        let entry = self.inner.ledger.get(&link.sandbox).ok_or_else(unknown)?;
        self.enter_entry(entry).await
    }
}

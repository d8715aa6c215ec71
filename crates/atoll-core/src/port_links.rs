//! Signed links to a port: whoever has one may use this one port of this one sandbox until a time. The link says until when;
//! a code over that, the sandbox and the port, which only this server can make, makes it valid.

use atoll_model::{Error, SandboxId, Scope};

use crate::keys::is_secret_hex;
use crate::signed_urls::LONGEST;
use crate::{Core, RequestContext};

/// Begins the text of every link, so that it is recognised where it is to be removed.
const PREFIX: &str = "plk_";

/// A signed link to a port.
#[derive(Debug, Clone)]
pub struct PortLink {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The credential.
    pub secret: String,
    /// Until when: seconds since 1970.
    pub expires: i64,
}

/// The expiry, in seconds since 1970, and the code of a text that has the form of a link.
fn parts(text: &str) -> Option<(i64, &str)> {
    let (expires, code) = text.strip_prefix(PREFIX)?.split_once('_')?;
    Some((expires.parse().ok()?, code)).filter(|(_, code)| is_secret_hex(code))
}

/// Whether a text has the form of a link to a port.
pub fn is_port_link(text: &str) -> bool {
    parts(text).is_some()
}

/// Until when a link is valid, in seconds since 1970. `None` if the text has not the form of one.
pub fn port_link_expiry(text: &str) -> Option<i64> {
    parts(text).map(|(expires, _)| expires)
}

/// What the code is over, besides the sandbox.
fn signed(port: u16, expires: i64) -> String {
    format!("port {port} until {expires}")
}

impl Core {
    /// Signs a link to a port that is valid for so many seconds.
    pub fn sign_port_link(
        &self,
        context: &RequestContext,
        name: &str,
        port: u16,
        seconds: u32,
    ) -> Result<PortLink, Error> {
        context.require(Scope::Sandboxes)?;
        if !(1..=LONGEST).contains(&seconds) {
            let message = format!("expiresIn is {seconds}");
            let remedy = format!("give 1 to {LONGEST} seconds");
            return Err(Error::invalid("expiresIn", message, remedy));
        }
        let entry = self.inner.sandboxes.find(&context.org.id, name)?;
        let sandbox = entry.read(|row| row.id.clone());
        let expires = self.inner.clock.system() / 1_000_000 + i64::from(seconds);
        let signer = &self.inner.signer;
        let code = signer.token(sandbox.as_str(), &signed(port, expires));
        Ok(PortLink {
            sandbox,
            secret: format!("{PREFIX}{expires}_{code}"),
            expires,
        })
    }

    /// Whether a link opens a port of a sandbox now. Takes as long for a sandbox that does not exist; the comparison takes
    /// constant time.
    pub fn is_opened_by_link(&self, id: &SandboxId, port: u16, link: &str) -> bool {
        let Some((expires, code)) = parts(link) else {
            return false;
        };
        let signer = &self.inner.signer;
        let is_ours = signer.verify_token(id.as_str(), &signed(port, expires), code);
        is_ours && expires > self.inner.clock.system() / 1_000_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_link_has_the_form_of_one() {
        let code = "0123456789abcdef".repeat(4);
        let link = format!("plk_1700000000_{code}");
        assert!(is_port_link(&link));
        assert_eq!(port_link_expiry(&link), Some(1_700_000_000));
        for other in [
            format!("plk__{code}"),
            format!("plk_1_{}", &code[1..]),
            format!("tkt_1_{code}"),
            format!("plk_x_{code}"),
            code.clone(),
        ] {
            assert!(!is_port_link(&other), "{other}");
        }
    }
}

//! Signed links to a port: permit requests to one port of one sandbox until a time, without an API key.
//!
//! The link contains the expiry in clear text and a MAC over sandbox, port and expiry.

use atoll_model::{Error, SandboxId, Scope};

use crate::control::keys::is_secret_hex;
use crate::data::signed_urls::MAX_VALIDITY_SECS;
use crate::{Core, RequestContext};

/// Prefix of every link, by which the server finds and removes it in forwarded requests.
const PREFIX: &str = "plk_";

/// A signed link to a port.
#[derive(Debug, Clone)]
pub struct PortLink {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The credential: prefix, expiry and MAC.
    pub secret: String,
    /// Expiry in seconds since 1970.
    pub expires: i64,
}

/// Splits a link into its expiry, in seconds since 1970, and its MAC. `None` if the text is not a link.
fn parts(text: &str) -> Option<(i64, &str)> {
    let (expires, code) = text.strip_prefix(PREFIX)?.split_once('_')?;
    Some((expires.parse().ok()?, code)).filter(|(_, code)| is_secret_hex(code))
}

/// Whether a text has the form of a link to a port.
pub fn is_port_link(text: &str) -> bool {
    parts(text).is_some()
}

/// Expiry of a link in seconds since 1970. `None` if the text is not a link.
pub fn port_link_expiry(text: &str) -> Option<i64> {
    parts(text).map(|(expires, _)| expires)
}

/// Text under the MAC, besides the sandbox id.
fn signed(port: u16, expires: i64) -> String {
    format!("port {port} until {expires}")
}

impl Core {
    /// Creates a link to a port that is valid for some seconds.
    pub fn sign_port_link(
        &self,
        context: &RequestContext,
        name: &str,
        port: u16,
        seconds: u32,
    ) -> Result<PortLink, Error> {
        context.require(Scope::Sandboxes)?;
        if !(1..=MAX_VALIDITY_SECS).contains(&seconds) {
            let message = format!("expiresIn is {seconds}");
            let remedy = format!("give 1 to {MAX_VALIDITY_SECS} seconds");
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

    /// Verifies a link to a port in constant time, also for a sandbox that does not exist.
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
    fn only_complete_links_are_recognized() {
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

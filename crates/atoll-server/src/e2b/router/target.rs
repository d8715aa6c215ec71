//! Determines the sandbox and port of a request.

use std::collections::BTreeSet;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue};

use crate::e2b::envd;
use crate::middleware::{host_of, request_authority};

/// Port of E2B's daemon (envd), which this server emulates.
pub(crate) const ENVD: u16 = 49983;

/// Target of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::e2b) struct Target {
    /// `None` if only the signature identifies the sandbox.
    pub(super) sandbox: Option<String>,
    pub(in crate::e2b) port: u16,
    /// The host name contains the sandbox.
    pub(super) by_host: bool,
}

/// Why a request for a sandbox has no valid target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InvalidTarget(pub(super) String);

impl Target {
    /// Target by headers, by a host name `PORT-ID.DOMAIN`, or by a signature; `None` if the request
    /// is for the API.
    pub(super) fn from_request(
        request: &Request,
        domains: &BTreeSet<String>,
    ) -> Result<Option<Self>, InvalidTarget> {
        let headers = request.headers();
        let host = host(request).unwrap_or_default();
        let host_target = parse_host(&host, domains);
        let id = single_header(headers, "e2b-sandbox-id")?;
        let Some(id) = id.or(host_target.as_ref().map(|(id, _)| id.as_str())) else {
            if envd::signature::is_signed(request.uri()) {
                return Ok(Some(Self {
                    sandbox: None,
                    port: ENVD,
                    by_host: false,
                }));
            }
            if is_subdomain("sandbox.", &host, domains) {
                let message = "this host requires the header E2b-Sandbox-Id";
                return Err(InvalidTarget(message.into()));
            }
            return Ok(None);
        };
        let id = parse_id(id)?;
        let port = match single_header(headers, "e2b-sandbox-port")? {
            Some(port) => Some(parse_port(port)?),
            None => None,
        };
        if let Some((other, its)) = &host_target
            && (id != parse_id(other)? || port.is_some_and(|port| port != *its))
        {
            let message = "the host names another sandbox or port than the headers E2b-Sandbox-Id and E2b-Sandbox-Port";
            return Err(InvalidTarget(message.into()));
        }
        let port = port.or(host_target.as_ref().map(|(_, port)| *port));
        Ok(Some(Self {
            sandbox: Some(id.to_owned()),
            port: port.unwrap_or(ENVD),
            by_host: host_target.is_some(),
        }))
    }
}

/// Parses sandbox and port from a host name.
fn parse_host(host: &str, domains: &BTreeSet<String>) -> Option<(String, u16)> {
    let (label, domain) = host.split_once('.')?;
    let (port, id) = label.split_once('-')?;
    let known = domains.contains(domain);
    known.then(|| Some((id.to_owned(), port.parse().ok()?)))?
}

/// Whether a host is a configured domain with this prefix.
pub(super) fn is_subdomain(before: &str, host: &str, domains: &BTreeSet<String>) -> bool {
    let domain = host.strip_prefix(before);
    domain.is_some_and(|domain| domains.contains(domain))
}

/// Value of a header that may occur once: repeated ones would be ambiguous.
fn single_header<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, InvalidTarget> {
    let mut values = headers.get_all(name).iter();
    match (values.next().map(HeaderValue::to_str), values.next()) {
        (None, _) => Ok(None),
        (Some(Ok(value)), None) => Ok(Some(value.trim())),
        _ => Err(InvalidTarget(format!(
            "the header {name} must occur once, as text"
        ))),
    }
}

/// Parses the sandbox id. Older clients append a client id after a hyphen.
fn parse_id(text: &str) -> Result<&str, InvalidTarget> {
    let id = text.split('-').next().unwrap_or_default();
    let fits = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9');
    if id.is_empty() || !id.bytes().all(fits) {
        return Err(InvalidTarget("Invalid sandbox ID".into()));
    }
    Ok(id)
}

fn parse_port(text: &str) -> Result<u16, InvalidTarget> {
    let port = text.parse().ok().filter(|port| *port > 0);
    let invalid = || InvalidTarget("the header E2b-Sandbox-Port is not a port: 1 to 65535".into());
    port.ok_or_else(invalid)
}

/// Host of a request, without the port.
pub(super) fn host(request: &Request) -> Option<String> {
    let host = request_authority(request.uri(), request.headers())?;
    Some(host_of(&host).to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    /// The target of a request with this URI and these headers.
    fn target(
        address: &str,
        headers: &[(&str, &str)],
    ) -> Result<Option<(String, u16)>, InvalidTarget> {
        let mut request = Request::builder().uri(address);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).expect("a request");
        let domains = BTreeSet::from(["box.test".to_owned()]);
        let found = Target::from_request(&request, &domains)?;
        Ok(found.map(|found| (found.sandbox.unwrap_or_default(), found.port)))
    }

    #[test]
    fn target_from_headers_host_or_http2_authority() {
        let there = |port| Ok(Some(("iabc".to_owned(), port)));
        assert_eq!(target("/", &[("e2b-sandbox-id", "iabc")]), there(ENVD));
        let both = [("e2b-sandbox-id", "iabc-old"), ("e2b-sandbox-port", "80")];
        assert_eq!(target("/", &both), there(80));
        assert_eq!(target("/", &[("host", "80-IABC.box.test:8443")]), there(80));
        assert_eq!(target("https://80-iabc.box.test:8443/", &[]), there(80));
        // E2B clients with a domain send both.
        assert_eq!(target("https://80-iabc.box.test/", &both), there(80));
        let id = [("e2b-sandbox-id", "iabc")];
        assert_eq!(target("https://80-iabc.box.test/", &id), there(80));
        assert_eq!(target("https://sandbox.box.test/", &both), there(80));
        let signed = target("https://sandbox.box.test/files?signature=x", &[]);
        assert_eq!(signed, Ok(Some((String::new(), ENVD))));
        for other in [
            "80-iabc.evil.test",
            "box.test",
            "x-iabc.box.test",
            "80.box.test",
        ] {
            assert_eq!(target("/", &[("host", other)]), Ok(None), "{other}");
        }
    }

    #[test]
    fn contradicting_or_invalid_targets_are_rejected() {
        let id = ("e2b-sandbox-id", "iabc");
        for invalid in ["", "0", "-1", "65536", "80a", "80,81", "\u{fc}"] {
            let port = ("e2b-sandbox-port", invalid);
            assert!(target("/", &[id, port]).is_err(), "{invalid:?}");
        }
        for invalid in ["", "-", "IABC", "i_abc", "../x", "iabc iabd", "\u{fc}"] {
            let id = ("e2b-sandbox-id", invalid);
            assert!(target("/", &[id]).is_err(), "{invalid:?}");
        }
        assert!(target("/", &[id, id]).is_err());
        assert!(
            target(
                "/",
                &[id, ("e2b-sandbox-port", "80"), ("e2b-sandbox-port", "81")]
            )
            .is_err()
        );
        for host in ["80-iabd.box.test", "81-iabc.box.test", "80-i_.box.test"] {
            let headers = [("host", host), id, ("e2b-sandbox-port", "80")];
            assert!(target("/", &headers).is_err(), "{host}");
        }
        assert!(target("/", &[("host", "sandbox.box.test")]).is_err());
        assert!(target("/", &[("host", "80-.box.test")]).is_err());
    }
}

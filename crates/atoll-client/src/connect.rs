//! Connections to a server: TCP, TLS for `https` URLs, or a Unix socket.

use std::path::Path;
use std::sync::Arc;

use atoll_model::{Code, Error};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::target::{Place, Target};

/// Remedy for a server that cannot be reached.
pub(crate) const UNREACHABLE_REMEDY: &str =
    "is it running? `atoll serve` starts one; ATOLL_URL or `atoll login` say where it is";

/// Paths of the CA bundles of distributions.
const SYSTEM: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// Bidirectional byte stream.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

pub(crate) type Stream = Box<dyn Duplex>;

pub(crate) async fn connect(target: &Target, authorities: Option<&Path>) -> Result<Stream, Error> {
    let unreachable = |error: std::io::Error| {
        let message = format!("no server can be reached at {target}: {error}");
        Error::new(Code::ServerUnreachable, message).remedy(UNREACHABLE_REMEDY)
    };
    let (host, port, encrypted) = match &target.place {
        Place::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(|error| {
                let denied = error.kind() == std::io::ErrorKind::PermissionDenied;
                let refused = unreachable(error);
                if denied {
                    return Error::new(Code::PermissionDenied, refused.message).remedy(
                        "the operator's socket is for root; others say ATOLL_URL and ATOLL_API_KEY, or `atoll login`",
                    );
                }
                refused
            })?;
            return Ok(Box::new(stream));
        }
        Place::Tcp {
            host,
            port,
            encrypted,
        } => (host, *port, *encrypted),
    };
    let stream = TcpStream::connect((host.as_str(), port)).await;
    let stream = stream.map_err(unreachable)?;
    let _ = stream.set_nodelay(true);
    if !encrypted {
        return Ok(Box::new(stream));
    }
    let name = ServerName::try_from(host.clone()).map_err(|_| {
        Error::invalid(
            "url",
            format!("{host:?} is no name of a host"),
            UNREACHABLE_REMEDY,
        )
    })?;
    let connector = TlsConnector::from(Arc::new(tls_config(authorities)?));
    let stream = connector.connect(name, stream).await.map_err(|error| {
        let message = format!("no encrypted connection to {target}: {error}");
        Error::new(Code::ServerUnreachable, message).remedy(
            "a certificate of your own is trusted with ATOLL_CA_FILE; a server without one is http://",
        )
    })?;
    Ok(Box::new(stream))
}

/// TLS configuration that trusts the certificate authorities of a file, or those of the system.
fn tls_config(authorities: Option<&Path>) -> Result<ClientConfig, Error> {
    let system = SYSTEM.map(Path::new).into_iter().find(|path| path.exists());
    let Some(file) = authorities.or(system) else {
        return Err(Error::new(
            Code::UnsupportedByHost,
            "this machine has no list of certificates to trust",
        )
        .remedy("install ca-certificates, or name a file with ATOLL_CA_FILE"));
    };
    let wrong = |why: String| {
        let message = format!(
            "the certificates in {} cannot be read: {why}",
            file.display()
        );
        Error::invalid("ATOLL_CA_FILE", message, "name a PEM file")
    };
    let mut roots = RootCertStore::empty();
    let all = CertificateDer::pem_file_iter(file).map_err(|error| wrong(error.to_string()))?;
    // Certificates that cannot be parsed are skipped; the others may be sufficient.
    roots.add_parsable_certificates(all.flatten());
    if roots.is_empty() {
        return Err(wrong("there is none".into()));
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(Code::Internal, format!("TLS cannot be had: {error}")))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

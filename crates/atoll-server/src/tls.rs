//! The certificate that the server shows, and its key: read again when somebody says so.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_model::{Code, Error};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// A certificate with its key, from two PEM files. Connections that are there keep the one they began with.
#[derive(Clone)]
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    current: Arc<Mutex<Arc<ServerConfig>>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads both, and checks that they belong together.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, Error> {
        let current = read(certificate, key)?;
        Ok(Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            current: Arc::new(Mutex::new(Arc::new(current))),
        })
    }

    /// Reads both again. What cannot be read, or does not belong together, leaves the old pair in place.
    pub fn reload(&self) -> Result<(), Error> {
        let new = Arc::new(read(&self.certificate, &self.key)?);
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(Arc::clone(&current))
    }
}

fn read(certificate: &Path, key: &Path) -> Result<ServerConfig, Error> {
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
    let chain = chain.map_err(|error| wrong("tls-cert", certificate, &error))?;
    if chain.is_empty() {
        return Err(wrong("tls-cert", certificate, &"it has no certificate"));
    }
    let secret =
        PrivateKeyDer::from_pem_file(key).map_err(|error| wrong("tls-key", key, &error))?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(Code::Internal, format!("TLS cannot be had: {error}")))?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|error| wrong("tls-key", key, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn wrong(field: &str, path: &Path, why: &dyn fmt::Display) -> Error {
    Error::invalid(
        field,
        format!("--{field} {}: {why}", path.display()),
        "name a PEM file with the certificate and those that vouch for it, and one with its key",
    )
}

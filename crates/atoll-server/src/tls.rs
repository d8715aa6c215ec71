//! TLS certificate and private key, reloaded on request.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_model::{Code, Error};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// Certificate chain and private key from two PEM files. Open connections keep the certificate of
/// their handshake.
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
    /// Reads both files and checks that they match.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, Error> {
        let current = read(certificate, key)?;
        Ok(Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            current: Arc::new(Mutex::new(Arc::new(current))),
        })
    }

    /// Reads both files again. On an error the previous pair stays in use.
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
    let chain = chain.map_err(|error| invalid_file("tls-cert", certificate, &error))?;
    if chain.is_empty() {
        return Err(invalid_file(
            "tls-cert",
            certificate,
            &"the file contains no certificate",
        ));
    }
    let secret =
        PrivateKeyDer::from_pem_file(key).map_err(|error| invalid_file("tls-key", key, &error))?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(Code::Internal, format!("cannot configure TLS: {error}")))?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|error| invalid_file("tls-key", key, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn invalid_file(field: &str, path: &Path, reason: &dyn fmt::Display) -> Error {
    Error::invalid(
        field,
        format!("--{field} {}: {reason}", path.display()),
        "give a PEM file with the certificate chain, and one with its private key",
    )
}

//! Certificate authorities that the operator adds to every sandbox.
//!
//! For each template a small layer is created once and mounted above the template's layer. It
//! contains the template's certificate bundle with the added certificates appended, and settings
//! that preserve them (`update-ca-certificates`, `sudo`). The template itself does not change.
//! Environment variables such as `SSL_CERT_FILE` name the bundle.
//!
//! ```text
//! INSTANCE/authorities/SERVER/TEMPLATE/etc/ssl/certs/ca-certificates.crt
//! ```
//! `SERVER` is random for each start, because a running sandbox stays mounted from a layer of an
//! earlier server. At a start, layers that no running sandbox uses are removed.

mod layer;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use atoll_model::{Error, SandboxId};
use serde::{Deserialize, Serialize};

use crate::error::host_file_error;
use crate::instance::{private_directory, remove_directory};
use crate::sync::lock;
use crate::template::Template;

/// Variables that name a certificate bundle to trust.
pub(crate) const VARIABLES: [&str; 10] = [
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "DENO_CERT",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
];

/// The added certificates, and the layers created from them.
#[derive(Debug)]
pub(crate) struct Authorities {
    /// In PEM.
    certificates: Vec<String>,
    /// Parent directory of the layers of all servers of the instance.
    directory: PathBuf,
    /// Name of this server's directory.
    server: String,
    /// By the id of the template's layer.
    layers: Mutex<HashMap<String, Arc<Layer>>>,
}

/// A layer with the added certificates, for one template.
#[derive(Debug)]
pub(crate) struct Layer {
    root: OwnedFd,
    record: LayerRecord,
}

/// What a sandbox's record contains of its layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerRecord {
    /// Name of the directory of the server that created it.
    pub(crate) server: String,
    /// Path of the bundle in the sandbox.
    bundle: String,
}

impl LayerRecord {
    /// Environment variables of every command.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        VARIABLES.iter().map(|name| (*name, self.bundle.as_str()))
    }
}

impl Layer {
    /// Its directory.
    pub(crate) fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// What a sandbox's record contains of it.
    pub(crate) fn record(&self) -> &LayerRecord {
        &self.record
    }
}

impl Authorities {
    /// `instance` is the instance's directory; `certificates` are in PEM.
    pub(crate) fn new(instance: &Path, certificates: &[String]) -> Result<Self, Error> {
        let authorities = Self {
            certificates: certificates.to_vec(),
            directory: instance.join("authorities"),
            server: SandboxId::random().to_string(),
            layers: Mutex::default(),
        };
        if !certificates.is_empty() {
            private_directory(&authorities.server_directory())?;
        }
        Ok(authorities)
    }

    fn server_directory(&self) -> PathBuf {
        self.directory.join(&self.server)
    }

    /// Whether a sandbox with this layer, or without one, trusts the configured certificates.
    pub(crate) fn matches(&self, layer: Option<&LayerRecord>) -> bool {
        match layer {
            Some(layer) => layer.server == self.server,
            None => self.certificates.is_empty(),
        }
    }

    /// The layer for sandboxes of a template, created at its first use; `None` without
    /// certificates.
    pub(crate) fn layer(&self, template: &Template) -> Result<Option<Arc<Layer>>, Error> {
        if self.certificates.is_empty() {
            return Ok(None);
        }
        let id = template.meta.id.as_ref().unwrap_or(&template.name);
        let mut layers = lock(&self.layers);
        if let Some(layer) = layers.get(id) {
            return Ok(Some(Arc::clone(layer)));
        }
        let directory = self.server_directory().join(id);
        let failed = |error: std::io::Error| host_file_error("create", &directory, &error);
        // An earlier attempt may have left a part.
        remove_directory(&directory)?;
        private_directory(&directory)?;
        let bundle = layer::fill(&directory, template, &self.certificates).map_err(failed)?;
        let layer = Arc::new(Layer {
            root: layer::open(&directory).map_err(failed)?,
            record: LayerRecord {
                server: self.server.clone(),
                bundle,
            },
        });
        layers.insert(id.clone(), Arc::clone(&layer));
        Ok(Some(layer))
    }

    /// Removes the layers of other servers that are not in `used`. After an error, the next start
    /// tries again.
    pub(crate) fn sweep(&self, used: &HashSet<String>) {
        for entry in fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name != self.server && !used.contains(&*name) {
                let _ = remove_directory(&entry.path());
            }
        }
    }
}

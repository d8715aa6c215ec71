//! Certificate authorities that the operator adds to every sandbox.
//!
//! For each template a small layer is made once, which sandboxes are mounted from above the template's: the template's
//! bundle of certificates with the added ones behind it, and what keeps it so (`update-ca-certificates`, `sudo`). The
//! template itself does not change. Variables that programs know lead to the bundle.
//!
//! ```text
//! INSTANCE/authorities/SERVER/TEMPLATE/etc/ssl/certs/ca-certificates.crt
//! ```
//! `SERVER` is another name for each start: a running sandbox stays mounted from what an earlier server made. Those that
//! no running sandbox needs are removed at a start.

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

use crate::error::host_file;
use crate::instance::{private_directory, remove_directory};
use crate::sandbox::lock;
use crate::template::Template;

/// Variables that name a bundle of certificates to trust.
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

/// The certificates, and the layers made of them.
#[derive(Debug)]
pub(crate) struct Authorities {
    /// Each in PEM.
    certificates: Vec<String>,
    /// Where all servers of the instance keep their layers.
    directory: PathBuf,
    /// The name of this one.
    server: String,
    /// By the id of the template's layer.
    layers: Mutex<HashMap<String, Arc<Layer>>>,
}

/// A layer that sandboxes are mounted from.
#[derive(Debug)]
pub(crate) struct Layer {
    root: OwnedFd,
    mounted: Mounted,
}

/// What a sandbox's record says of the layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mounted {
    /// The server that made it.
    pub(crate) server: String,
    /// The path of the bundle in the sandbox.
    bundle: String,
}

impl Mounted {
    /// Variables of every command.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        VARIABLES.iter().map(|name| (*name, self.bundle.as_str()))
    }
}

impl Layer {
    /// Its directory.
    pub(crate) fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// What a sandbox's record says of it.
    pub(crate) fn mounted(&self) -> &Mounted {
        &self.mounted
    }
}

impl Authorities {
    /// Certificates, each in PEM, for the sandboxes of an instance with this directory.
    pub(crate) fn new(instance: &Path, certificates: &[String]) -> Result<Self, Error> {
        let authorities = Self {
            certificates: certificates.to_vec(),
            directory: instance.join("authorities"),
            server: SandboxId::random().to_string(),
            layers: Mutex::default(),
        };
        if !certificates.is_empty() {
            private_directory(&authorities.place())?;
        }
        Ok(authorities)
    }

    fn place(&self) -> PathBuf {
        self.directory.join(&self.server)
    }

    /// Whether a sandbox that is mounted from this, or from none, has what is to be added.
    pub(crate) fn agree(&self, mounted: Option<&Mounted>) -> bool {
        match mounted {
            Some(mounted) => mounted.server == self.server,
            None => self.certificates.is_empty(),
        }
    }

    /// The layer for sandboxes of a template; `None` if nothing is to be added. It is made at its first use.
    pub(crate) fn layer(&self, template: &Template) -> Result<Option<Arc<Layer>>, Error> {
        if self.certificates.is_empty() {
            return Ok(None);
        }
        let id = template.meta.id.as_ref().unwrap_or(&template.name);
        let mut layers = lock(&self.layers);
        if let Some(layer) = layers.get(id) {
            return Ok(Some(Arc::clone(layer)));
        }
        let at = self.place().join(id);
        let failed = |error: std::io::Error| host_file("make", &at, &error);
        // What an earlier attempt left.
        remove_directory(&at)?;
        private_directory(&at)?;
        let bundle = layer::make(&at, template, &self.certificates).map_err(failed)?;
        let layer = Arc::new(Layer {
            root: layer::open(&at).map_err(failed)?,
            mounted: Mounted {
                server: self.server.clone(),
                bundle,
            },
        });
        layers.insert(id.clone(), Arc::clone(&layer));
        Ok(Some(layer))
    }

    /// Removes the layers of other servers, but for these. What cannot be removed now is at the next start.
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

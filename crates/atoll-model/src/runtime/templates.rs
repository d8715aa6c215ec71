//! Templates of a runtime.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::PathBuf;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use serde::{Deserialize, Serialize};

use crate::Error;

/// Template of sandboxes that are created without a template name.
pub const DEFAULT_TEMPLATE: &str = "base";

/// Contents of an uploaded archive. An error aborts the upload.
pub type ArchiveStream = BoxStream<'static, Result<Bytes, Error>>;

/// Templates of a runtime.
#[async_trait]
pub trait Templates: Debug + Send + Sync {
    /// All templates, by name.
    async fn templates(&self) -> Result<Vec<(String, TemplateInfo)>, Error>;

    /// One template.
    async fn template(&self, name: &str) -> Result<TemplateInfo, Error>;

    /// Creates a template from a tar archive of a root file system, plain or compressed with gzip or zstd. The template
    /// exists after the whole archive was unpacked, or not at all.
    async fn add_template(
        &self,
        name: &str,
        archive: ArchiveStream,
        options: TemplateOptions,
    ) -> Result<TemplateInfo, Error>;

    /// Removes a template that no sandbox uses.
    async fn remove_template(&self, name: &str) -> Result<(), Error>;
}

/// The user that commands run as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateUser {
    /// Name in `/etc/passwd`.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Home directory.
    pub home: PathBuf,
}

impl Default for TemplateUser {
    fn default() -> Self {
        Self {
            name: "user".to_owned(),
            uid: 1000,
            gid: 1000,
            home: "/home/user".into(),
        }
    }
}

/// Description of a template. Stored as `template.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateInfo {
    /// Version of this format, 1.
    pub version: u32,
    /// Id of the layer, independent of the template's name. `None` in a template of a version without ids, until its
    /// first use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Time of creation, in seconds since 1970.
    pub created_at: u64,
    /// Its source: "host system", "directory X" or "archive X".
    pub source: String,
    /// User that commands run as.
    #[serde(default)]
    pub user: TemplateUser,
    /// Environment variables of every command.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Whether setuid programs work; otherwise the sandbox is `nosuid` with no-new-privileges.
    #[serde(default = "default_true")]
    pub sudo: bool,
    /// Whether programs can create user namespaces.
    #[serde(default)]
    pub nested_user_namespaces: bool,
    /// Bytes of its files.
    pub size: u64,
    /// Number of its files, directories and links.
    pub files: u64,
}

const fn default_true() -> bool {
    true
}

/// Options of a new template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateOptions {
    /// User that commands run as; gets an account and a home if the tree has none.
    pub user: TemplateUser,
    /// Environment variables of every command.
    pub env: BTreeMap<String, String>,
    /// Whether setuid programs work.
    pub sudo: bool,
    /// Whether programs can create user namespaces.
    pub nested_user_namespaces: bool,
    /// Whether an existing template of that name is replaced.
    pub replace: bool,
    /// Maximum bytes of the unpacked tree.
    pub max_bytes: u64,
}

impl Default for TemplateOptions {
    fn default() -> Self {
        Self {
            user: TemplateUser::default(),
            env: BTreeMap::new(),
            sudo: true,
            nested_user_namespaces: false,
            replace: false,
            max_bytes: 64 << 30,
        }
    }
}

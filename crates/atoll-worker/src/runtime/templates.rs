//! Templates of this machine.

use std::sync::Arc;

use atoll_model::Error;

use super::LocalRuntime;
use crate::sandbox::run_blocking;
use crate::storage::DiskSpace;
use crate::template::{ArchiveReader, TemplateInfo, TemplateOptions};
use crate::warm_pool::WarmPool;

impl LocalRuntime {
    /// All templates, by name.
    pub async fn templates(&self) -> Result<Vec<(String, TemplateInfo)>, Error> {
        let shared = Arc::clone(&self.shared);
        run_blocking(move || {
            let names = shared.templates.list()?;
            // A template that was removed meanwhile or is corrupt is left out.
            let known = |name: String| Some((name.clone(), shared.templates.get(&name).ok()?.meta));
            Ok(names.into_iter().filter_map(known).collect())
        })
        .await
    }

    /// One template.
    pub async fn template(&self, name: &str) -> Result<TemplateInfo, Error> {
        let (shared, name) = (Arc::clone(&self.shared), name.to_owned());
        run_blocking(move || Ok(shared.templates.get(&name)?.meta)).await
    }

    /// Creates a template from an uploaded archive. The template exists after the whole archive was
    /// unpacked, or not at all. Its size is limited by the disk space beside the host's reserve.
    pub async fn add_template(
        &self,
        name: &str,
        stream: ArchiveReader,
        options: TemplateOptions,
    ) -> Result<TemplateInfo, Error> {
        let (shared, name) = (Arc::clone(&self.shared), name.to_owned());
        run_blocking(move || {
            let path = shared.templates.path();
            let space = DiskSpace::for_path(path)?;
            space.require(path)?;
            let max_bytes = options.max_bytes.min(space.available().0);
            let options = TemplateOptions {
                max_bytes,
                ..options
            };
            shared.templates.add_stream(&name, stream, &options)?;
            Ok(shared.templates.get(&name)?.meta)
        })
        .await
    }

    /// Removes a template that no sandbox uses. Its warm sandboxes are discarded first.
    pub async fn remove_template(&self, name: &str) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let _no_refill = WarmPool::evict_template(&shared, name).await;
        let (shared, name) = (Arc::clone(&shared), name.to_owned());
        run_blocking(move || Ok(shared.templates.remove(&name)?)).await
    }
}

//! Templates of this machine.

use std::sync::Arc;

use atoll_model::Error;

use super::LocalRuntime;
use crate::pool::Pool;
use crate::sandbox::blocking;
use crate::storage::Space;
use crate::template::{Meta, Options, Stream};

impl LocalRuntime {
    /// All templates, by name.
    pub async fn templates(&self) -> Result<Vec<(String, Meta)>, Error> {
        let shared = Arc::clone(&self.shared);
        blocking(move || {
            let names = shared.templates.list()?;
            // One that has gone meanwhile, or is damaged, is not there.
            let known = |name: String| Some((name.clone(), shared.templates.get(&name).ok()?.meta));
            Ok(names.into_iter().filter_map(known).collect())
        })
        .await
    }

    /// One template.
    pub async fn template(&self, name: &str) -> Result<Meta, Error> {
        let (shared, name) = (Arc::clone(&self.shared), name.to_owned());
        blocking(move || Ok(shared.templates.get(&name)?.meta)).await
    }

    /// Makes a template from an archive that is sent; it is there when all of it was, or not at all. It may be as large
    /// as the disk allows without the host's reserve.
    pub async fn add_template(
        &self,
        name: &str,
        stream: Stream,
        options: Options,
    ) -> Result<Meta, Error> {
        let (shared, name) = (Arc::clone(&self.shared), name.to_owned());
        blocking(move || {
            let place = shared.templates.path();
            let space = Space::of(place)?;
            space.require(place)?;
            let max_bytes = options.max_bytes.min(space.left().0);
            let options = Options {
                max_bytes,
                ..options
            };
            shared.templates.add_stream(&name, stream, &options)?;
            Ok(shared.templates.get(&name)?.meta)
        })
        .await
    }

    /// Removes a template that no sandbox runs on. Warm ones of it are ended.
    pub async fn remove_template(&self, name: &str) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let _none_is_made = Pool::dismiss(&shared, name).await;
        let (shared, name) = (Arc::clone(&shared), name.to_owned());
        blocking(move || Ok(shared.templates.remove(&name)?)).await
    }
}

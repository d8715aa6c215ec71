//! Templates. All orgs of a host share them; only admins create and remove them.

use atoll_model::runtime::{ArchiveStream, DEFAULT_TEMPLATE, TemplateInfo, TemplateOptions};
use atoll_model::{Code, Error, Scope};

use crate::{Core, RequestContext};

/// A template as returned to callers.
#[derive(Debug, Clone)]
pub struct TemplateView {
    /// Template name.
    pub name: String,
    /// Size, creation time and defaults.
    pub meta: TemplateInfo,
    /// Whether sandboxes that are created without a template get this one.
    pub is_default: bool,
}

impl TemplateView {
    fn new(name: String, meta: TemplateInfo) -> Self {
        let is_default = name == DEFAULT_TEMPLATE;
        Self {
            name,
            meta,
            is_default,
        }
    }
}

impl Core {
    /// Returns all templates, newest first.
    pub async fn templates(&self, context: &RequestContext) -> Result<Vec<TemplateView>, Error> {
        context.require(Scope::Read)?;
        let mut all = self.inner.runtime.templates().await?;
        // A stable sort: templates with the same time stay sorted by name.
        all.sort_by_key(|(_, meta)| std::cmp::Reverse(meta.created_at));
        let view = |(name, meta)| TemplateView::new(name, meta);
        Ok(all.into_iter().map(view).collect())
    }

    /// Returns a template by name.
    pub async fn template(
        &self,
        context: &RequestContext,
        name: &str,
    ) -> Result<TemplateView, Error> {
        context.require(Scope::Read)?;
        let meta = self.inner.runtime.template(name).await;
        // A name that no template can have is not found.
        let meta = meta.map_err(|error| match error.code {
            Code::InvalidRequest => not_found(name),
            _ => error,
        })?;
        Ok(TemplateView::new(name.to_owned(), meta))
    }

    /// Creates a template from an archive stream, atomically: an aborted upload or a crash leaves nothing.
    pub async fn add_template(
        &self,
        context: &RequestContext,
        name: &str,
        archive: ArchiveStream,
        options: TemplateOptions,
    ) -> Result<TemplateView, Error> {
        context.require(Scope::Admin)?;
        let meta = self.inner.runtime.add_template(name, archive, options);
        Ok(TemplateView::new(name.to_owned(), meta.await?))
    }

    /// Removes a template that no sandbox uses. A stopped sandbox needs its template to start.
    pub async fn remove_template(&self, context: &RequestContext, name: &str) -> Result<(), Error> {
        context.require(Scope::Admin)?;
        self.template(context, name).await?;
        if name == DEFAULT_TEMPLATE {
            let message = "the default template cannot be removed";
            return Err(Error::new(Code::Conflict, message).remedy("leave it as it is"));
        }
        let of = |entry: &std::sync::Arc<crate::live_sandboxes::LiveSandbox>| {
            entry.read(|row| row.template == name)
        };
        let count = self
            .inner
            .sandboxes
            .all()
            .iter()
            .filter(|entry| of(entry))
            .count();
        if count > 0 {
            let message = format!("template {name:?} is in use by {count} sandboxes");
            return Err(Error::new(Code::Conflict, message)
                .remedy("delete the sandboxes that were made from it first")
                .detail("sandboxes", count.to_string()));
        }
        self.inner.runtime.remove_template(name).await
    }
}

fn not_found(name: &str) -> Error {
    Error::new(
        Code::TemplateNotFound,
        format!("no template is called {name:?}"),
    )
    .remedy("GET /templates lists them")
}

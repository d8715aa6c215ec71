//! Templates: of the machine, seen by all, made and removed by admins.

use atoll_model::{Code, Error, Scope};
use atoll_worker::template::{ArchiveReader, BASE, TemplateInfo, TemplateOptions};

use crate::{Core, RequestContext};

/// A template as people see it.
#[derive(Debug, Clone)]
pub struct TemplateView {
    /// Its name.
    pub name: String,
    /// What is known of it.
    pub meta: TemplateInfo,
    /// Sandboxes that nobody gave a template start from it.
    pub is_default: bool,
}

impl TemplateView {
    fn new(name: String, meta: TemplateInfo) -> Self {
        let is_default = name == BASE;
        Self {
            name,
            meta,
            is_default,
        }
    }
}

impl Core {
    /// All templates, newest first.
    pub async fn templates(&self, context: &RequestContext) -> Result<Vec<TemplateView>, Error> {
        context.require(Scope::Read)?;
        let mut all = self.inner.runtime.templates().await?;
        // Those of one moment by name.
        all.sort_by_key(|(_, meta)| std::cmp::Reverse(meta.created_at));
        let view = |(name, meta)| TemplateView::new(name, meta);
        Ok(all.into_iter().map(view).collect())
    }

    /// One template.
    pub async fn template(
        &self,
        context: &RequestContext,
        name: &str,
    ) -> Result<TemplateView, Error> {
        context.require(Scope::Read)?;
        let meta = self.inner.runtime.template(name).await;
        // A name that none can have is one that none has.
        let meta = meta.map_err(|error| match error.code {
            Code::InvalidRequest => unknown(name),
            _ => error,
        })?;
        Ok(TemplateView::new(name.to_owned(), meta))
    }

    /// Makes a template from an archive that is sent. Whether the sender breaks off or we are killed, it is there whole
    /// or not at all.
    pub async fn add_template(
        &self,
        context: &RequestContext,
        name: &str,
        stream: ArchiveReader,
        options: TemplateOptions,
    ) -> Result<TemplateView, Error> {
        context.require(Scope::Admin)?;
        let meta = self.inner.runtime.add_template(name, stream, options);
        Ok(TemplateView::new(name.to_owned(), meta.await?))
    }

    /// Removes a template that nobody needs: a stopped sandbox could not start without its own.
    pub async fn remove_template(&self, context: &RequestContext, name: &str) -> Result<(), Error> {
        context.require(Scope::Admin)?;
        self.template(context, name).await?;
        if name == BASE {
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

fn unknown(name: &str) -> Error {
    Error::new(
        Code::TemplateNotFound,
        format!("no template is called {name:?}"),
    )
    .remedy("GET /templates lists them")
}

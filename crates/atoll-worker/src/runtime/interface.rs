//! The runtime traits of the model, implemented for [`LocalRuntime`] by its own methods.
//!
//! The methods of [`LocalRuntime`] return concrete types, which the command line uses directly. The
//! traits return boxed ones, which a remote runtime can return too.

mod execs;
mod files;
mod lifecycle;
mod reservation;

use std::net::SocketAddr;

use async_trait::async_trait;
use atoll_model::runtime::{
    ArchiveStream, OpenedUse, PortConnection, Ports, TemplateInfo, TemplateOptions, Templates,
    UseGuard, Uses,
};
use atoll_model::{Error, SandboxId};
use futures_util::StreamExt as _;

use super::LocalRuntime;
use crate::template::{ArchiveSender, archive_channel};

#[async_trait]
impl Templates for LocalRuntime {
    async fn templates(&self) -> Result<Vec<(String, TemplateInfo)>, Error> {
        Self::templates(self).await
    }

    async fn template(&self, name: &str) -> Result<TemplateInfo, Error> {
        Self::template(self, name).await
    }

    async fn add_template(
        &self,
        name: &str,
        archive: ArchiveStream,
        options: TemplateOptions,
    ) -> Result<TemplateInfo, Error> {
        // The archive is unpacked in a thread while it is received.
        let (sender, reader) = archive_channel();
        let added = Self::add_template(self, name, reader, options);
        let (sent, added) = tokio::join!(forward(archive, sender), added);
        let added = added?;
        sent.map(|()| added)
    }

    async fn remove_template(&self, name: &str) -> Result<(), Error> {
        Self::remove_template(self, name).await
    }
}

/// Forwards an archive to the thread that unpacks it. If the archive is incomplete, unpacking fails.
async fn forward(mut archive: ArchiveStream, sender: ArchiveSender) -> Result<(), Error> {
    while let Some(chunk) = archive.next().await {
        if !sender.send(chunk?.to_vec()).await {
            break;
        }
    }
    sender.end().await;
    Ok(())
}

#[async_trait]
impl Uses for LocalRuntime {
    async fn open_use(&self, id: &SandboxId) -> Result<OpenedUse, Error> {
        Self::open_use(self, id).await
    }

    fn count_use(&self, id: &SandboxId) -> Box<dyn UseGuard> {
        Self::count_use(self, id)
    }
}

#[async_trait]
impl Ports for LocalRuntime {
    async fn ports(&self, id: &SandboxId) -> Result<Vec<SocketAddr>, Error> {
        Self::ports(self, id).await
    }

    async fn dial(&self, id: &SandboxId, port: u16) -> Result<Box<dyn PortConnection>, Error> {
        let stream = Self::dial(self, id, port).await?;
        // Interactive protocols are common, and the data comes in large chunks otherwise.
        let _ = stream.set_nodelay(true);
        Ok(Box::new(stream))
    }

    async fn wait_stopped(&self, id: &SandboxId) {
        Self::wait_stopped(self, id).await;
    }
}

//! TCP ports of a runtime's sandboxes.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{Error, SandboxId};

/// Ports of the sandboxes of a runtime.
#[async_trait]
pub trait Ports: Debug + Send + Sync {
    /// Addresses on which TCP servers of a sandbox listen, on any interface.
    async fn ports(&self, id: &SandboxId) -> Result<Vec<SocketAddr>, Error>;

    /// Connects to a TCP port on a sandbox's loopback interface; its network does not matter.
    async fn dial(&self, id: &SandboxId, port: u16) -> Result<Box<dyn PortConnection>, Error>;

    /// Waits until a sandbox has no processes.
    async fn wait_stopped(&self, id: &SandboxId);
}

/// A connection to a port of a sandbox.
pub trait PortConnection: AsyncRead + AsyncWrite + AsRawFd + Debug + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + AsRawFd + Debug + Send + Sync + Unpin> PortConnection for T {}

//! Two-step creation: the sandbox's id is known before its owner's row is written, and the sandbox
//! is created after that.

use std::fmt;
use std::pin::Pin;

use async_trait::async_trait;
use atoll_model::runtime::Reservation;
use atoll_model::{Code, Error, SandboxId, SandboxInfo, SandboxSpec};
use tokio::sync::oneshot;

use super::LocalRuntime;
use crate::runtime::BeforeCreate;

/// A create that waits in its hook for the caller's decision.
///
/// It is polled in the task of the caller, because a task of its own would cost a hand-over to
/// another thread and back.
pub(super) struct PendingCreate {
    id: SandboxId,
    runtime: LocalRuntime,
    /// Sending continues the create; dropping cancels it.
    decision: oneshot::Sender<()>,
    create: Pin<Box<dyn Future<Output = Result<SandboxInfo, Error>> + Send>>,
}

impl fmt::Debug for PendingCreate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingCreate")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

pub(super) async fn reserve(
    runtime: &LocalRuntime,
    spec: SandboxSpec,
) -> Result<PendingCreate, Error> {
    let (announce, announced) = oneshot::channel();
    let (decision, decided) = oneshot::channel();
    let hook: BeforeCreate = Box::new(|id| {
        Box::pin(async move {
            let _ = announce.send(id);
            let released = |_| Error::new(Code::Conflict, "the reservation was released");
            decided.await.map_err(released)
        })
    });
    let creator = runtime.clone();
    let mut create = Box::pin(async move { creator.create_with_hook(spec, hook).await });
    tokio::select! {
        biased;
        // It completes before the hook only if it fails.
        created = &mut create => Err(created.err().unwrap_or_else(|| {
            Error::new(Code::Internal, "the sandbox was created without a reservation")
        })),
        Ok(id) = announced => Ok(PendingCreate { id, runtime: runtime.clone(), decision, create }),
    }
}

#[async_trait]
impl Reservation for PendingCreate {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    async fn create(self: Box<Self>) -> Result<SandboxInfo, Error> {
        // Cannot fail: the create holds the receiver.
        let _ = self.decision.send(());
        let created = self.create.await?;
        Ok(self.runtime.with_deadlines(created))
    }

    async fn release(self: Box<Self>) {
        drop(self.decision);
        let _ = self.create.await;
    }
}

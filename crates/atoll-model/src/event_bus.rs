//! Event bus: notifications between the parts of a server, and between the processes of a fleet.
//!
//! A notification is a hint and carries no state: its subscriber reads the current state from the store or the runtime.
//! Notifications may therefore be repeated, and a subscriber that missed some checks everything.

use std::fmt::Debug;

use async_trait::async_trait;

use crate::{KeyId, OrgId, SandboxId};

/// Something that other parts react to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notification {
    /// The state of a sandbox has changed without a request: it has exited, expired, or was resumed by a use.
    SandboxChanged(SandboxId),
    /// API keys of an org were revoked.
    KeysRevoked {
        /// The org of the keys.
        org: OrgId,
        /// The keys.
        keys: Vec<KeyId>,
    },
}

/// Kind of a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// [`Notification::SandboxChanged`].
    SandboxChanged,
    /// [`Notification::KeysRevoked`].
    KeysRevoked,
}

impl Notification {
    /// The topic of the notification.
    pub fn topic(&self) -> Topic {
        match self {
            Self::SandboxChanged(_) => Topic::SandboxChanged,
            Self::KeysRevoked { .. } => Topic::KeysRevoked,
        }
    }
}

/// Delivers each published notification to all subscribers of its topic.
pub trait EventBus: Debug + Send + Sync {
    /// Publishes a notification without waiting for its delivery.
    fn publish(&self, notification: Notification);

    /// Subscribes to the notifications that are published from now on.
    fn subscribe(&self, topic: Topic) -> Box<dyn Subscription>;
}

/// Receives the notifications of one topic.
#[async_trait]
pub trait Subscription: Debug + Send {
    /// Waits for the next notification. `None`: some were missed. Cancel-safe.
    async fn next(&mut self) -> Option<Notification>;
}

//! Event bus within one process.

use async_trait::async_trait;
use atoll_model::{EventBus, Notification, Subscription, Topic};
use tokio::sync::broadcast::{Receiver, Sender, channel, error::RecvError};

/// Notifications that a slow subscriber may be behind. It misses older ones.
const CAPACITY: usize = 1024;

/// Delivers notifications within this process.
#[derive(Debug)]
pub struct InProcessBus {
    sandbox_changed: Sender<Notification>,
    keys_revoked: Sender<Notification>,
}

impl Default for InProcessBus {
    fn default() -> Self {
        Self {
            sandbox_changed: channel(CAPACITY).0,
            keys_revoked: channel(CAPACITY).0,
        }
    }
}

impl InProcessBus {
    fn sender(&self, topic: Topic) -> &Sender<Notification> {
        match topic {
            Topic::SandboxChanged => &self.sandbox_changed,
            Topic::KeysRevoked => &self.keys_revoked,
        }
    }
}

impl EventBus for InProcessBus {
    fn publish(&self, notification: Notification) {
        // An error means that there is no subscriber.
        let _ = self.sender(notification.topic()).send(notification);
    }

    fn subscribe(&self, topic: Topic) -> Box<dyn Subscription> {
        Box::new(InProcessSubscription(self.sender(topic).subscribe()))
    }
}

#[derive(Debug)]
struct InProcessSubscription(Receiver<Notification>);

#[async_trait]
impl Subscription for InProcessSubscription {
    async fn next(&mut self) -> Option<Notification> {
        match self.0.recv().await {
            Ok(notification) => Some(notification),
            Err(RecvError::Lagged(_)) => None,
            // The bus is gone, and the server with it.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use atoll_model::{KeyId, OrgId, SandboxId};

    use super::*;

    fn revocation() -> Notification {
        Notification::KeysRevoked {
            org: OrgId::random(),
            keys: vec![KeyId::random()],
        }
    }

    #[tokio::test]
    async fn subscriber_gets_its_topic_only() {
        let bus = InProcessBus::default();
        let mut keys = bus.subscribe(Topic::KeysRevoked);
        bus.publish(Notification::SandboxChanged(SandboxId::random()));
        let revoked = revocation();
        bus.publish(revoked.clone());
        assert_eq!(keys.next().await, Some(revoked));
    }

    #[tokio::test]
    async fn slow_subscriber_learns_that_it_missed_notifications() {
        let bus = InProcessBus::default();
        let mut keys = bus.subscribe(Topic::KeysRevoked);
        for _ in 0..=CAPACITY {
            bus.publish(revocation());
        }
        assert_eq!(keys.next().await, None);
        assert!(keys.next().await.is_some());
    }
}

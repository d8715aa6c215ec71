//! Management of sandboxes, orgs and keys: permissions, quotas, transitions, expiry and history. Writes rows.

pub(crate) mod connect;
pub(crate) mod events;
pub(crate) mod expiry;
pub(crate) mod history;
pub(crate) mod keys;
pub(crate) mod orgs;
pub(crate) mod reconcile;
pub(crate) mod sandboxes;
pub(crate) mod static_key;
pub(crate) mod stream_shutdown;
pub(crate) mod templates;
pub(crate) mod tickets;
pub(crate) mod timekeeping;

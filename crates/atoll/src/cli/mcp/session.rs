//! Sandboxes of a session with one agent host: selects the sandbox of a call, and deletes created
//! sandboxes when the session ends.
//!
//! Timeouts of created sandboxes are renewed during the session. If the session is killed, they
//! expire soon after.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_client::{Client, Request};
use atoll_model::{Code, Error, Network};
use serde_json::{Map, Value, json};
use tokio::sync::RwLock;
use tokio::time::{sleep, timeout};

use super::super::eprint_line;
use super::super::exec::{Lost, find_end};
use super::super::sandbox::create;
use super::super::server_args::{below, find, text};

/// Timeout for the end of a session: hosts wait a few seconds.
const END: Duration = Duration::from_secs(10);

/// Which sandboxes the tools use.
#[derive(Debug)]
pub(super) enum SandboxScope {
    /// One existing sandbox.
    Given(String),
    /// Sandboxes of the session, created from this specification.
    Own {
        body: Map<String, Value>,
        network: Network,
        timeout: Duration,
    },
}

/// Session with one agent host.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) whose: SandboxScope,
    /// Sandbox of calls that name none. The lock is held during its creation, so that two
    /// concurrent first calls create one sandbox.
    usual: tokio::sync::Mutex<Option<String>>,
    made: Mutex<BTreeSet<String>>,
    /// Calls hold the read lock; the end of the session takes the write lock to wait for them.
    pub(super) calls: RwLock<()>,
    /// Serializes edits, each of which is two requests.
    pub(super) edits: tokio::sync::Mutex<()>,
}

impl Session {
    pub(super) fn new(client: Client, whose: SandboxScope) -> Self {
        Self {
            client,
            whose,
            usual: tokio::sync::Mutex::default(),
            made: Mutex::default(),
            calls: RwLock::default(),
            edits: tokio::sync::Mutex::default(),
        }
    }

    /// Whether tools can create, name and delete sandboxes.
    pub(super) fn is_free(&self) -> bool {
        matches!(self.whose, SandboxScope::Own { .. })
    }

    /// Returns the sandbox of a call.
    pub(super) async fn sandbox(&self, named: Option<&str>) -> Result<String, Error> {
        if let Some(name) = named {
            return Ok(name.to_owned());
        }
        let mut usual = self.usual.lock().await;
        if let Some(id) = &*usual {
            return Ok(id.clone());
        }
        let id = match &self.whose {
            SandboxScope::Given(name) => find(&self.client, name).await?,
            SandboxScope::Own { .. } => text(&self.make(Map::new()).await?, "sandboxID").to_owned(),
        };
        *usual = Some(id.clone());
        Ok(id)
    }

    /// The default sandbox, if it exists already.
    pub(super) async fn usual(&self) -> Option<String> {
        self.usual.lock().await.clone()
    }

    /// Creates a sandbox with the session's settings, except for the given fields.
    pub(super) async fn make(&self, said: Map<String, Value>) -> Result<Value, Error> {
        let SandboxScope::Own { body, .. } = &self.whose else {
            return Err(Error::new(
                Code::Internal,
                "this session makes no sandboxes",
            ));
        };
        let mut body = body.clone();
        body.extend(said);
        let made = create(&self.client, &body.into()).await?;
        self.lock_created()
            .insert(text(&made, "sandboxID").to_owned());
        Ok(made)
    }

    /// Deletes a sandbox with its files.
    pub(super) async fn remove(&self, name: &str) -> Result<(), Error> {
        let about = self
            .client
            .send_json(&Request::get(below(name, &[])))
            .await?;
        let id = text(&about, "sandboxID");
        self.client
            .send_buffered(&Request::delete(below(id, &[])))
            .await?;
        self.forget(id).await;
        Ok(())
    }

    /// Forgets a deleted sandbox. If it was the default one, the next call creates another.
    async fn forget(&self, id: &str) -> bool {
        self.lock_created().remove(id);
        let mut usual = self.usual.lock().await;
        usual.take_if(|usual| usual == id).is_some()
    }

    /// The error for a sandbox that does not exist or does not run. A stopped sandbox of the
    /// session is started again with its files, and the error says that its processes are gone.
    pub(super) async fn explain(&self, name: &str, error: Error) -> Error {
        let end = match error.code {
            Code::SandboxNotFound | Code::SandboxStopped => self.lifetime_end(name).await,
            _ => None,
        };
        let error = match &end {
            Some(message) => Error {
                message: message.clone(),
                ..error
            },
            None => error,
        };
        let say = |message: String| Error {
            message,
            ..error.clone()
        };
        match (error.code, &self.whose) {
            (Code::SandboxNotFound, SandboxScope::Given(given)) => {
                self.forget(name).await;
                let known = end.map_or_else(String::new, |end| format!(": {end}"));
                say(format!(
                    "the session is for the sandbox {given:?}, which is not there{known}"
                ))
                .remedy("tell the user: `atoll mcp --sandbox` names another")
            }
            (Code::SandboxNotFound, SandboxScope::Own { .. }) if self.forget(name).await => {
                let known = end.map_or_else(String::new, |end| format!(": {end}"));
                say(format!(
                    "the session's own sandbox {name} is gone, with its files{known}"
                ))
                .remedy("the next call makes another one")
            }
            (Code::SandboxNotFound, SandboxScope::Own { .. }) => {
                error.remedy("list_sandboxes tells which there are")
            }
            (Code::SandboxStopped, _) if self.lock_created().contains(name) => {
                let start = Request::post(below(name, &["start"]), &json!({})).idempotent();
                match self.client.send_buffered(&start).await {
                    Ok(_) => say(format!("{}; it was started again", error.message))
                        .remedy("try again: its files are there, and what ran in it is not"),
                    Err(error) => error,
                }
            }
            (Code::SandboxStopped, _) => {
                error.remedy(format!("tell the user: `atoll start {name}`"))
            }
            _ => error,
        }
    }

    /// An error if the sandbox is missing or stopped because its lifetime ended.
    async fn lifetime_end(&self, name: &str) -> Option<String> {
        let end = find_end(&self.client, name, Lost::Command).await?;
        end.details.contains_key("exitCode").then_some(end.message)
    }

    /// Renews the timeouts of the session's sandboxes at an interval.
    pub(super) async fn renew(&self) {
        let SandboxScope::Own { timeout, .. } = self.whose else {
            return std::future::pending().await;
        };
        if timeout.is_zero() {
            return std::future::pending().await;
        }
        let body = json!({ "timeout": timeout.as_secs() });
        loop {
            sleep((timeout / 3).max(Duration::from_secs(1))).await;
            let made = self.lock_created().clone();
            for id in made {
                let request = Request::post(below(&id, &["timeout"]), &body).idempotent();
                match self.client.send_buffered(&request).await {
                    // The next call that uses the sandbox reports the error.
                    Err(error) if error.code == Code::SandboxNotFound => {
                        self.lock_created().remove(&id);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Waits for running calls, then deletes the session's sandboxes.
    pub(super) async fn end(&self, keep: bool) {
        let ended = timeout(END, async {
            let _alone = self.calls.write().await;
            let made = self.lock_created().clone();
            for id in made.iter().filter(|_| !keep) {
                match self
                    .client
                    .send_buffered(&Request::delete(below(id, &[])))
                    .await
                {
                    Err(error) if error.code != Code::SandboxNotFound => {
                        eprint_line(&format!("atoll: {id} is left: {error}"));
                    }
                    _ => {
                        self.lock_created().remove(id);
                    }
                }
            }
        });
        if ended.await.is_err() {
            let left: Vec<String> = self.lock_created().iter().cloned().collect();
            eprint_line(&format!(
                "atoll: the server does not answer; what was made may be left: {}",
                left.join(", ")
            ));
        }
    }

    fn lock_created(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! The sandboxes of one agent host: which one is meant, which were made, and that they go when the host goes.
//!
//! Sandboxes that were made here are renewed while the session lives, and removed at its end. If it is killed, their time is
//! up soon after.

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

/// What the end of a session may take: a host waits a few seconds.
const END: Duration = Duration::from_secs(10);

/// SandboxScope sandboxes the tools work in.
#[derive(Debug)]
pub(super) enum SandboxScope {
    /// One that was there before.
    Given(String),
    /// The session's, made like this.
    Own {
        asked: Map<String, Value>,
        network: Network,
        timeout: Duration,
    },
}

/// One agent host.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) whose: SandboxScope,
    /// The sandbox of tools that name none. Held while it is made: two first calls make one.
    usual: tokio::sync::Mutex<Option<String>>,
    made: Mutex<BTreeSet<String>>,
    /// Every call holds it with others; the end waits for it alone.
    pub(super) calls: RwLock<()>,
    /// An edit is two requests: agents send several at once.
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

    /// Sandboxes can be made, named and removed.
    pub(super) fn is_free(&self) -> bool {
        matches!(self.whose, SandboxScope::Own { .. })
    }

    /// The sandbox that a tool works in.
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

    /// Which one is used if none is named, if there is one already.
    pub(super) async fn usual(&self) -> Option<String> {
        self.usual.lock().await.clone()
    }

    /// Makes one, as the session makes them but for what is said here.
    pub(super) async fn make(&self, said: Map<String, Value>) -> Result<Value, Error> {
        let SandboxScope::Own { asked, .. } = &self.whose else {
            return Err(Error::new(
                Code::Internal,
                "this session makes no sandboxes",
            ));
        };
        let mut asked = asked.clone();
        asked.extend(said);
        let made = create(&self.client, &asked.into()).await?;
        self.made().insert(text(&made, "sandboxID").to_owned());
        Ok(made)
    }

    /// Removes one, with its files.
    pub(super) async fn remove(&self, name: &str) -> Result<(), Error> {
        let about = self.client.call(&Request::get(below(name, &[]))).await?;
        let id = text(&about, "sandboxID");
        self.client.ask(&Request::delete(below(id, &[]))).await?;
        self.forget(id).await;
        Ok(())
    }

    /// It is not there any more. If tools went there by themselves, the next one makes another.
    async fn forget(&self, id: &str) -> bool {
        self.made().remove(id);
        let mut usual = self.usual.lock().await;
        usual.take_if(|usual| usual == id).is_some()
    }

    /// What an agent is told of a sandbox that is not there, or does not run. One of ours that was stopped is started again: its files are
    /// there, but the agent must know that nothing runs in it.
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
            (Code::SandboxStopped, _) if self.made().contains(name) => {
                let start = Request::post(below(name, &["start"]), &json!({})).idempotent();
                match self.client.ask(&start).await {
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

    /// That the lifetime of a sandbox ended, if that is why it is not there or does not run.
    async fn lifetime_end(&self, name: &str) -> Option<String> {
        let end = find_end(&self.client, name, Lost::Command).await?;
        end.details.contains_key("exitCode").then_some(end.message)
    }

    /// Says again and again that the session is there.
    pub(super) async fn renew(&self) {
        let SandboxScope::Own { timeout, .. } = self.whose else {
            return std::future::pending().await;
        };
        if timeout.is_zero() {
            return std::future::pending().await;
        }
        let asked = json!({ "timeout": timeout.as_secs() });
        loop {
            sleep((timeout / 3).max(Duration::from_secs(1))).await;
            let made = self.made().clone();
            for id in made {
                let request = Request::post(below(&id, &["timeout"]), &asked).idempotent();
                match self.client.ask(&request).await {
                    // The next tool that is used there tells the agent.
                    Err(error) if error.code == Code::SandboxNotFound => {
                        self.made().remove(&id);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Waits for what is being done, and removes what was made.
    pub(super) async fn end(&self, keep: bool) {
        let ended = timeout(END, async {
            let _alone = self.calls.write().await;
            let made = self.made().clone();
            for id in made.iter().filter(|_| !keep) {
                match self.client.ask(&Request::delete(below(id, &[]))).await {
                    Err(error) if error.code != Code::SandboxNotFound => {
                        eprint_line(&format!("atoll: {id} is left: {error}"));
                    }
                    _ => {
                        self.made().remove(id);
                    }
                }
            }
        });
        if ended.await.is_err() {
            let left: Vec<String> = self.made().iter().cloned().collect();
            eprint_line(&format!(
                "atoll: the server does not answer; what was made may be left: {}",
                left.join(", ")
            ));
        }
    }

    fn made(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! How a runtime is set up.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use atoll_jail::plan::Plan;
use atoll_model::{Bytes, Limits};

use crate::exec::budget;
use crate::network;
use crate::reserve::Reserve;

/// Changes a plan before it is carried out. Attack tests take one defence away with it, to show
/// that the same attack would then succeed; nothing else has a use for it.
pub type Amend = Arc<dyn Fn(&mut Plan) + Send + Sync>;

/// How a runtime is set up.
#[derive(Clone)]
pub struct Config {
    /// The data directory.
    pub data: PathBuf,
    /// Where templates are: by default `templates/` below the data directory.
    pub templates: PathBuf,
    /// The binary keepers are started from; its `main` calls `atoll_jail::keeper::run_if_asked`.
    pub binary: PathBuf,
    /// Sandboxes outlive this process: the next one that opens the same data directory goes on with them.
    /// Otherwise they are part of a small instance that ends with it.
    pub lasting: bool,
    /// How many sandboxes are made in advance: of `base`, and of what was asked for lately.
    pub warm: usize,
    /// How many more are prepared, but for what they are made from.
    pub embryos: usize,
    /// How the network `internet` is set up.
    pub network: network::Config,
    /// What sandboxes' files are on.
    pub storage: crate::Storage,
    /// What is left to the host.
    pub reserve: Reserve,
    /// The most one sandbox may have.
    pub ceilings: Limits,
    /// Certificates that every sandbox trusts besides those of its template, each in PEM.
    pub authorities: Vec<String>,
    /// How long a sandbox may leave a call without a sign of life, and a reader of a command's output take
    /// nothing while the command waits for it.
    pub patience: Duration,
    /// How much of what a command writes is kept: at least 1 MiB, and 16 times as much of all commands of a sandbox.
    pub window: Bytes,
    /// What is run in sandboxes is written to a journal beside their files.
    pub journal: bool,
    /// See [`Amend`].
    pub amend: Option<Amend>,
}

impl Config {
    /// What a server has: sandboxes outlive it, and some are ready before they are asked for.
    pub fn serving(data: impl Into<PathBuf>) -> Self {
        Self {
            lasting: true,
            warm: 16,
            embryos: 96,
            journal: true,
            ..Self::new(data)
        }
    }

    /// The usual for a single run: this very program, below a data directory.
    pub fn new(data: impl Into<PathBuf>) -> Self {
        let data = data.into();
        Self {
            templates: data.join("templates"),
            data,
            binary: "/proc/self/exe".into(),
            lasting: false,
            warm: 0,
            embryos: 0,
            network: network::Config::default(),
            storage: crate::Storage::default(),
            reserve: Reserve::default(),
            ceilings: Limits::MOST,
            authorities: Vec::new(),
            patience: Duration::from_secs(30),
            window: budget::DEFAULT_WINDOW,
            journal: false,
            amend: None,
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("data", &self.data)
            .finish_non_exhaustive()
    }
}

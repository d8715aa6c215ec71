//! The keepers that earlier servers left.
//!
//! `run/keeper.sock` is the keeper that new sandboxes come from: one of our own version, or one that we start. Keepers of other
//! versions keep the sandboxes they have, at `run/keeper-VERSION.sock`: those that we understand are spoken with, those
//! that we do not are left alone, until their last sandbox is gone.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use atoll_jail::wire::{Channel, FromKeeper, Packet, Spoken, ToKeeper};
use atoll_model::{Code, Error};
use tokio::sync::watch;

use super::{Found, Keeper, Parent, Waiting};
use crate::error::{host_file, internal, jail};

/// Where the keeper is that makes new sandboxes.
pub(crate) const SOCKET: &str = "keeper.sock";

/// How often a keeper is told that it may go, and how long that may take it.
const DISMISSALS: usize = 20;
const BETWEEN: Duration = Duration::from_millis(20);

/// What keepers kept for us.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    /// What they hold as long as they live, all the same.
    pub(crate) held: Vec<OwnedFd>,
    /// Those that we speak with.
    pub(crate) keepers: Vec<Arc<Keeper>>,
    pub(crate) sandboxes: Vec<Found>,
    /// Those that we do not speak with.
    pub(crate) foreign: Vec<Foreign>,
}

/// A keeper whose version we do not understand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Foreign {
    /// Its socket.
    socket: String,
    pub(crate) version: u32,
}

/// Who answered at a socket.
enum Met {
    Nobody,
    Foreign(Spoken, Vec<OwnedFd>),
    Spoken(Spoken, Channel<ToKeeper, FromKeeper>, Vec<OwnedFd>),
}

/// Takes over the keepers that other servers left in a directory; the first of them is our own, if there is one.
pub(crate) fn take_over(
    run: &Path,
    directory: BorrowedFd<'_>,
) -> Result<(Option<Arc<Keeper>>, Inventory), Error> {
    let (mut own, mut inventory) = (None, Inventory::default());
    for socket in sockets(run)? {
        let (spoken, channel, held) = match meet(directory, &socket)? {
            Met::Nobody => {
                let _ = fs::remove_file(run.join(&socket));
                continue;
            }
            Met::Foreign(spoken, held) => (spoken, None, held),
            Met::Spoken(spoken, channel, held) => (spoken, Some(channel), held),
        };
        if inventory.held.is_empty() {
            inventory.held = held;
        }
        let ours = own.is_none() && channel.is_some() && spoken.version == Spoken::ours().version;
        let socket = name(run, socket, spoken, ours)?;
        match channel {
            Some(channel) => {
                if let Some(keeper) = inventory.take(channel)?
                    && ours
                {
                    own = Some(keeper);
                }
            }
            None => inventory.foreign.push(Foreign {
                socket,
                version: spoken.version,
            }),
        }
    }
    Ok((own, inventory))
}

/// The sockets of keepers, that of the last server first.
fn sockets(run: &Path) -> Result<Vec<String>, Error> {
    let entries = fs::read_dir(run).map_err(|error| host_file("read", run, &error))?;
    let is_keeper = |path: &Path| {
        let name = path.file_stem().and_then(OsStr::to_str);
        path.extension() == Some(OsStr::new("sock"))
            && name.is_some_and(|name| name.starts_with("keeper"))
    };
    let paths = entries.flatten().map(|entry| entry.path());
    let mut names: Vec<String> = paths
        .filter(|path| is_keeper(path))
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .collect();
    names.sort_by_key(|name| (name != SOCKET, name.clone()));
    Ok(names)
}

/// Gives a keeper's socket the name that says whose it is.
fn name(run: &Path, socket: String, spoken: Spoken, ours: bool) -> Result<String, Error> {
    let free = |name: &String| !run.join(name).exists();
    let wanted = if ours {
        SOCKET.to_owned()
    } else if socket == SOCKET {
        let plain = format!("keeper-{}.sock", spoken.version);
        let numbered = (2..).map(|number| format!("keeper-{}-{number}.sock", spoken.version));
        let mut names = std::iter::once(plain).chain(numbered);
        names.find(free).unwrap_or_default()
    } else {
        return Ok(socket);
    };
    if wanted != socket {
        let renamed = fs::rename(run.join(&socket), run.join(&wanted));
        renamed.map_err(|error| host_file("rename", &run.join(&socket), &error))?;
    }
    Ok(wanted)
}

/// Hears what a keeper speaks.
fn meet(directory: BorrowedFd<'_>, socket: &str) -> Result<Met, Error> {
    let connected = atoll_jail::keeper::connect(directory, socket);
    let connected = connected.map_err(|error| match &error {
        atoll_jail::Error::Step { source, .. } if is_silence(source) => silent(),
        _ => jail(&error),
    });
    let Some(channel) = connected? else {
        return Ok(Met::Nobody);
    };
    Ok(match hear(&channel)? {
        None => Met::Nobody,
        Some(Packet {
            message: FromKeeper::Hello(spoken),
            descriptors,
        }) if spoken.is_understood() => Met::Spoken(spoken, channel, descriptors),
        Some(Packet {
            message: FromKeeper::Hello(spoken),
            descriptors,
        }) => Met::Foreign(spoken, descriptors),
        Some(_) => return Err(Error::new(Code::Internal, "a keeper did not greet us")),
    })
}

impl Inventory {
    /// Hears what a keeper has; nothing if it ended meanwhile.
    fn take(
        &mut self,
        channel: Channel<ToKeeper, FromKeeper>,
    ) -> Result<Option<Arc<Keeper>>, Error> {
        let mut waiting = Waiting::default();
        let mut found: Vec<(String, OwnedFd, Parent)> = Vec::new();
        let mut execs: HashMap<u32, HashMap<u32, Vec<OwnedFd>>> = HashMap::new();
        loop {
            let Some(Packet {
                message,
                descriptors,
            }) = hear(&channel)?
            else {
                return Ok(None);
            };
            match message {
                FromKeeper::Sandbox { token, name, pid } => {
                    let Some(control) = descriptors.into_iter().next() else {
                        continue;
                    };
                    waiting.next = waiting.next.max(token);
                    let (death, died) = watch::channel(None);
                    waiting.deaths.insert(token, death);
                    let parent = Parent {
                        token,
                        pid,
                        user_namespace: None,
                        died,
                    };
                    found.push((name, control, parent));
                }
                FromKeeper::Held { token, request } => {
                    execs.entry(token).or_default().insert(request, descriptors);
                }
                FromKeeper::Died { token, status } => {
                    if let Some(death) = waiting.deaths.remove(&token) {
                        death.send_replace(Some(status));
                    }
                }
                FromKeeper::Complete => break,
                FromKeeper::Hello(_) | FromKeeper::Spawned { .. } | FromKeeper::Refused { .. } => {}
            }
        }
        rustix::io::ioctl_fionbio(&channel, true)
            .map_err(|error| internal("change a socket", &std::io::Error::from(error)))?;
        let keeper = Arc::new(Keeper::with(channel, None, waiting)?);
        self.sandboxes
            .extend(found.into_iter().map(|(name, control, parent)| Found {
                name,
                control,
                execs: execs.remove(&parent.token).unwrap_or_default(),
                parent,
                keeper: Arc::clone(&keeper),
            }));
        self.keepers.push(Arc::clone(&keeper));
        Ok(Some(keeper))
    }
}

impl Foreign {
    /// Lets one go whose last sandbox is gone: it need not remember for anybody how they ended.
    pub(crate) fn dismiss(&self, directory: BorrowedFd<'_>) {
        // The end of the last may not have come to its ears yet.
        for _ in 0..DISMISSALS {
            let Ok(Some(channel)) = atoll_jail::keeper::connect(directory, &self.socket) else {
                return;
            };
            Self::accept(&channel);
            std::thread::sleep(BETWEEN);
        }
    }

    /// Says to a keeper of any version that all it knows was heard.
    fn accept(channel: &Channel<ToKeeper, FromKeeper>) {
        let accepted = ToKeeper::Hold {
            token: 0,
            request: 0,
            released: Vec::new(),
        };
        let said = channel.send(&accepted, &[]);
        let _ = rustix::net::shutdown(channel, rustix::net::Shutdown::Write);
        // It tells of all it has, which is not asked for, and hangs up when it has heard all of this.
        while said.is_ok() && rustix::io::read(channel, &mut [0; 64][..]).is_ok_and(|read| read > 0)
        {
        }
    }
}

/// What a keeper says next; nothing if it has ended.
fn hear(channel: &Channel<ToKeeper, FromKeeper>) -> Result<Option<Packet<FromKeeper>>, Error> {
    match channel.receive() {
        Err(error) if atoll_jail::keeper::is_gone(&error) => Ok(None),
        Err(error) if is_silence(&error) => Err(silent()),
        received => received.map_err(|error| internal("take the keeper over", &error)),
    }
}

fn is_silence(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::WouldBlock
}

/// It is there, and nothing was changed.
fn silent() -> Error {
    Error::new(
        Code::Timeout,
        "the keeper of the running sandboxes does not answer",
    )
    .remedy("see whether the process atoll-keeper is stopped, and start atoll again")
}

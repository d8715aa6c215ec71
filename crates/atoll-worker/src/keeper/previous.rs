//! Keepers of earlier servers.
//!
//! `run/keeper.sock` is the socket of the keeper for new sandboxes, which has our version. Keepers
//! of other versions keep their sandboxes, at `run/keeper-VERSION.sock`, until the last one has
//! ended. Compatible ones are used, incompatible ones are only dismissed at the end.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use atoll_jail::wire::{Channel, FromKeeper, Packet, ToKeeper, VersionRange};
use atoll_model::{Code, Error};
use tokio::sync::watch;

use super::{InitProcess, Keeper, Pending, SurvivingSandbox};
use crate::error::{host_file_error, internal, jail};

/// Socket of the keeper for new sandboxes.
pub(crate) const SOCKET: &str = "keeper.sock";

/// Number of dismissals of a keeper, and the delay between them.
const MAX_DISMISSALS: usize = 20;
const DISMISSAL_INTERVAL: Duration = Duration::from_millis(20);

/// What earlier keepers hold.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    /// Locks; every keeper of the instance holds the same.
    pub(crate) held: Vec<OwnedFd>,
    /// Keepers with a compatible version.
    pub(crate) keepers: Vec<Arc<Keeper>>,
    pub(crate) sandboxes: Vec<SurvivingSandbox>,
    /// Keepers with an incompatible version.
    pub(crate) incompatible: Vec<IncompatibleKeeper>,
}

/// A keeper with an incompatible protocol version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IncompatibleKeeper {
    /// Name of its socket in `run/`.
    socket: String,
    pub(crate) version: u32,
}

/// Result of connecting to a socket.
enum Handshake {
    NoKeeper,
    Incompatible(VersionRange, Vec<OwnedFd>),
    Compatible(VersionRange, Channel<ToKeeper, FromKeeper>, Vec<OwnedFd>),
}

/// Adopts the keepers whose sockets are in a directory. The first result is the keeper of our
/// version, if there is one.
pub(crate) fn adopt(
    run: &Path,
    directory: BorrowedFd<'_>,
) -> Result<(Option<Arc<Keeper>>, Inventory), Error> {
    let (mut own, mut inventory) = (None, Inventory::default());
    for socket in sockets(run)? {
        let (version, channel, held) = match handshake(directory, &socket)? {
            Handshake::NoKeeper => {
                let _ = fs::remove_file(run.join(&socket));
                continue;
            }
            Handshake::Incompatible(version, held) => (version, None, held),
            Handshake::Compatible(version, channel, held) => (version, Some(channel), held),
        };
        if inventory.held.is_empty() {
            inventory.held = held;
        }
        let ours =
            own.is_none() && channel.is_some() && version.version == VersionRange::ours().version;
        let socket = rename_socket(run, socket, version, ours)?;
        match channel {
            Some(channel) => {
                if let Some(keeper) = inventory.read(channel)?
                    && ours
                {
                    own = Some(keeper);
                }
            }
            None => inventory.incompatible.push(IncompatibleKeeper {
                socket,
                version: version.version,
            }),
        }
    }
    Ok((own, inventory))
}

/// Names of the keepers' sockets, the current keeper's first.
fn sockets(run: &Path) -> Result<Vec<String>, Error> {
    let entries = fs::read_dir(run).map_err(|error| host_file_error("read", run, &error))?;
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

/// Renames a keeper's socket according to its version; returns the name.
fn rename_socket(
    run: &Path,
    socket: String,
    version: VersionRange,
    ours: bool,
) -> Result<String, Error> {
    let free = |name: &String| !run.join(name).exists();
    let wanted = if ours {
        SOCKET.to_owned()
    } else if socket == SOCKET {
        let plain = format!("keeper-{}.sock", version.version);
        let numbered = (2..).map(|number| format!("keeper-{}-{number}.sock", version.version));
        let mut names = std::iter::once(plain).chain(numbered);
        names.find(free).unwrap_or_default()
    } else {
        return Ok(socket);
    };
    if wanted != socket {
        let renamed = fs::rename(run.join(&socket), run.join(&wanted));
        renamed.map_err(|error| host_file_error("rename", &run.join(&socket), &error))?;
    }
    Ok(wanted)
}

/// Connects to a keeper and reads its version.
fn handshake(directory: BorrowedFd<'_>, socket: &str) -> Result<Handshake, Error> {
    let connected = atoll_jail::keeper::connect(directory, socket);
    let connected = connected.map_err(|error| match &error {
        atoll_jail::Error::Step { source, .. } if is_timeout(source) => no_response(),
        _ => jail(&error),
    });
    let Some(channel) = connected? else {
        return Ok(Handshake::NoKeeper);
    };
    Ok(match receive(&channel)? {
        None => Handshake::NoKeeper,
        Some(Packet {
            message: FromKeeper::Hello(version),
            descriptors,
        }) if version.is_compatible() => Handshake::Compatible(version, channel, descriptors),
        Some(Packet {
            message: FromKeeper::Hello(version),
            descriptors,
        }) => Handshake::Incompatible(version, descriptors),
        Some(_) => {
            return Err(Error::new(
                Code::Internal,
                "a keeper sent an unexpected first message",
            ));
        }
    })
}

impl Inventory {
    /// Reads a keeper's inventory; `None` if it ended meanwhile.
    fn read(
        &mut self,
        channel: Channel<ToKeeper, FromKeeper>,
    ) -> Result<Option<Arc<Keeper>>, Error> {
        let mut pending = Pending::default();
        let mut found: Vec<(String, OwnedFd, InitProcess)> = Vec::new();
        let mut execs: HashMap<u32, HashMap<u32, Vec<OwnedFd>>> = HashMap::new();
        loop {
            let Some(Packet {
                message,
                descriptors,
            }) = receive(&channel)?
            else {
                return Ok(None);
            };
            match message {
                FromKeeper::Sandbox { token, name, pid } => {
                    let Some(control) = descriptors.into_iter().next() else {
                        continue;
                    };
                    pending.next = pending.next.max(token);
                    let (exit, exit_status) = watch::channel(None);
                    pending.exits.insert(token, exit);
                    let process = InitProcess {
                        token,
                        pid,
                        user_namespace: None,
                        exit_status,
                    };
                    found.push((name, control, process));
                }
                FromKeeper::Held { token, request } => {
                    execs.entry(token).or_default().insert(request, descriptors);
                }
                FromKeeper::Died { token, status } => {
                    if let Some(exit) = pending.exits.remove(&token) {
                        exit.send_replace(Some(status));
                    }
                }
                FromKeeper::Complete => break,
                FromKeeper::Hello(_) | FromKeeper::Spawned { .. } | FromKeeper::Refused { .. } => {}
            }
        }
        rustix::io::ioctl_fionbio(&channel, true)
            .map_err(|error| internal("change a socket", &std::io::Error::from(error)))?;
        let keeper = Arc::new(Keeper::from_channel(channel, None, pending)?);
        self.sandboxes.extend(
            found
                .into_iter()
                .map(|(name, control, process)| SurvivingSandbox {
                    name,
                    control,
                    execs: execs.remove(&process.token).unwrap_or_default(),
                    process,
                    keeper: Arc::clone(&keeper),
                }),
        );
        self.keepers.push(Arc::clone(&keeper));
        Ok(Some(keeper))
    }
}

impl IncompatibleKeeper {
    /// Ends a keeper without sandboxes: tells it that it can forget how they ended.
    pub(crate) fn dismiss(&self, directory: BorrowedFd<'_>) {
        // The keeper may not have noticed the last exit yet.
        for _ in 0..MAX_DISMISSALS {
            let Ok(Some(channel)) = atoll_jail::keeper::connect(directory, &self.socket) else {
                return;
            };
            Self::acknowledge(&channel);
            std::thread::sleep(DISMISSAL_INTERVAL);
        }
    }

    /// Acknowledges all exits, with a message that every version understands.
    fn acknowledge(channel: &Channel<ToKeeper, FromKeeper>) {
        let message = ToKeeper::Hold {
            token: 0,
            request: 0,
            released: Vec::new(),
        };
        let sent = channel.send(&message, &[]);
        let _ = rustix::net::shutdown(channel, rustix::net::Shutdown::Write);
        // The inventory is read and ignored; at end of file the keeper has read the message.
        while sent.is_ok() && rustix::io::read(channel, &mut [0; 64][..]).is_ok_and(|read| read > 0)
        {
        }
    }
}

/// The next message; `None` if the keeper has ended.
fn receive(channel: &Channel<ToKeeper, FromKeeper>) -> Result<Option<Packet<FromKeeper>>, Error> {
    match channel.receive() {
        Err(error) if atoll_jail::keeper::is_gone(&error) => Ok(None),
        Err(error) if is_timeout(&error) => Err(no_response()),
        received => received.map_err(|error| internal("adopt the keeper", &error)),
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::WouldBlock
}

/// Error for a keeper that does not respond. Nothing was changed.
fn no_response() -> Error {
    Error::new(
        Code::Timeout,
        "the keeper of the running sandboxes does not respond",
    )
    .remedy("check whether the process atoll-keeper is stopped (SIGSTOP), then start atoll again")
}

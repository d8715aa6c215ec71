//! Garbage collection of dead instances.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use atoll_jail::cgroup::InstanceCgroup;
use atoll_jail::facts::Facts;
use atoll_model::Error;

use super::registry::{self, read_tag};
use super::{dismantle, named, remove_directory};
use crate::error::{host_file_error, internal, jail};
use crate::network::inventory;
use crate::storage;

/// Result of [`collect`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Collected {
    /// Tags of dead instances that were removed.
    pub instances: Vec<String>,
    /// Tags of dead instances of other data directories whose rules and links were removed.
    pub networks: Vec<String>,
    /// What could not be removed, with the reason.
    pub problems: Vec<String>,
}

/// Which dead instances [`collect`] removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope<'a> {
    /// Instances below this data directory.
    Below(&'a Path),
    /// All instances of the host.
    Host,
}

/// Removes what dead instances left: control groups, links, rules, directories, registrations. Live
/// instances and kept sandboxes are not touched. Rules and links are removed in any scope, because
/// they contain no user data.
pub fn collect(scope: Scope<'_>, facts: &Facts) -> Result<Collected, Error> {
    let mut collected = Collected::default();
    let registry = registry::path();
    let entries = match fs::read_dir(&registry) {
        Ok(entries) => entries.flatten().map(|entry| entry.file_name()).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(host_file_error("read", &registry, &error)),
    };
    for tag in entries.iter().filter_map(|name| name.to_str()) {
        match collect_one(tag, &registry.join(tag), scope, facts) {
            Ok(true) => collected.instances.push(tag.to_owned()),
            Ok(false) => {}
            Err(error) => collected.problems.push(format!("{tag}: {error}")),
        }
    }
    // After a reboot there are no registrations, only directories.
    if let Scope::Below(data) = scope {
        for entry in fs::read_dir(data.join("runs"))
            .into_iter()
            .flatten()
            .flatten()
        {
            if !registry.join(entry.file_name()).exists() {
                let removed = storage::unmount(&entry.path());
                match removed.and_then(|()| remove_directory(&entry.path())) {
                    Ok(()) => collected
                        .instances
                        .push(entry.file_name().to_string_lossy().into_owned()),
                    Err(error) => collected.problems.push(error.to_string()),
                }
            }
        }
    }
    if let Scope::Below(data) = scope {
        collected.problems.extend(named::sweep(data));
    }
    for tag in stale_networks()? {
        match remove_network(&tag) {
            Ok(true) => collected.networks.push(tag),
            Ok(false) => {}
            Err(error) => collected.problems.push(format!("{tag}: {error}")),
        }
    }
    collected.instances.sort();
    collected.instances.dedup();
    Ok(collected)
}

/// Tags of dead instances that have rules or links in the network namespace of this thread. An
/// instance that is not registered on this host is not included: it may live in a container that
/// shares the network namespace.
pub fn stale_networks() -> Result<Vec<String>, Error> {
    let mut tags = Vec::new();
    for tag in inventory::tags()? {
        if registry::lock_dead(&tag)?.is_some() {
            tags.push(tag);
        }
    }
    Ok(tags)
}

/// Removes the rules and links of an instance if it is dead.
fn remove_network(tag: &str) -> Result<bool, Error> {
    // Held meanwhile, so that the instance cannot start again.
    let Some(_lock) = registry::lock_dead(tag)? else {
        return Ok(false);
    };
    crate::network::remove_leftovers(tag)?;
    Ok(true)
}

/// Removes one instance if it is dead and in scope.
fn collect_one(tag: &str, entry: &Path, scope: Scope<'_>, facts: &Facts) -> Result<bool, Error> {
    let Some(mut file) = registry::lock_dead(tag)? else {
        return Ok(false);
    };
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)
        .map_err(|error| host_file_error("read", entry, &error))?;
    use std::os::unix::ffi::OsStringExt;
    let directory = PathBuf::from(std::ffi::OsString::from_vec(bytes));
    let own = read_tag(&directory);
    // One that died before its tag was written is recognised by its path.
    let is_persistent = own.is_some() || named::is_run_directory(&directory);
    if let Scope::Below(data) = scope
        && !directory.starts_with(data.join("runs"))
        && !directory.starts_with(data.join(named::DIRECTORY))
        && !(is_persistent && directory == data)
    {
        return Ok(false);
    }
    // An entry without a directory died before it had one.
    let cgroups = InstanceCgroup::of(facts, tag).map_err(|error| jail(&error))?;
    if directory.as_os_str().is_empty() {
        fs::remove_file(entry).map_err(|error| internal("remove a registration", &error))?;
        return Ok(true);
    }
    crate::network::remove_leftovers(tag)?;
    // Only directories with the form of a run's directory are removed.
    let is_ephemeral = directory.file_name().is_some_and(|name| name == tag);
    if is_persistent || !is_ephemeral || !directory.exists() {
        // Its processes are gone; its files are persistent or already removed.
        cgroups.destroy().map_err(|error| jail(&error))?;
        // Not if the data directory has another tag now: its storage is in use.
        if own.is_none_or(|own| own == tag) {
            storage::unmount(&directory)?;
        }
        fs::remove_file(entry).map_err(|error| internal("remove a registration", &error))?;
        return Ok(true);
    }
    dismantle(tag, &directory, &cgroups)?;
    Ok(true)
}

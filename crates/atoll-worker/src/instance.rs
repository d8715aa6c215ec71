//! An instance: one data directory and everything the kernel holds for it, named by its tag.
//!
//! `/run/atoll/instances/TAG` names the data directory of every instance of this host and is locked
//! by it (and by its keeper) for as long as it lives. Whose lock can be had is dead: then, and only
//! then, may its control groups and files be taken away.

pub mod named;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use atoll_jail::cgroup::Tree;
use atoll_jail::facts::Facts;
use atoll_jail::ids::Ranges;
use atoll_model::{Code, Error, SandboxId};

use crate::error::{host_file, internal, jail};
use crate::storage::{self, Disk, Storage};
use crate::tree;

/// What all instances of a host share.
const SHARED: &str = "/run/atoll";

/// How long a keeper that was killed may take to be gone.
const KEEPER_ENDS: std::time::Duration = std::time::Duration::from_secs(10);

/// A living instance.
#[derive(Debug)]
pub struct Instance {
    /// Its name in every name we give the kernel.
    pub tag: String,
    /// Its directory.
    pub directory: PathBuf,
    /// Held locked.
    pub(crate) lock: File,
    /// Its claims on user ids.
    pub(crate) ranges: Ranges,
    /// The parent of its sandboxes' control groups.
    pub(crate) cgroups: Tree,
    /// What its sandboxes' files are on.
    pub(crate) disk: Box<dyn Disk>,
    /// It outlives its server; locked against a second one.
    pub(crate) lasting: Option<File>,
}

/// What `collect` did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Collected {
    /// Tags of dead instances that were taken away.
    pub instances: Vec<String>,
    /// What could not be taken away, and why.
    pub problems: Vec<String>,
}

impl Instance {
    /// Makes a small instance of its own below a data directory, for one run.
    pub fn ephemeral(data: &Path, storage: Storage, facts: &Facts) -> Result<Self, Error> {
        storage::require(storage, facts)?;
        data_directory(data)?;
        private_directory(Path::new(SHARED))?;
        let registry = Path::new(SHARED).join("instances");
        private_directory(&registry)?;
        let runs = data.join("runs");
        private_directory(&runs)?;
        let (tag, lock) = register(&registry, |tag| runs.join(tag))?;
        let directory = runs.join(&tag);
        for part in ["", "sandboxes", "trash"] {
            private_directory(&directory.join(part))?;
        }
        spread(&directory.join("sandboxes"));
        let ranges = Ranges::open(&Path::new(SHARED).join("ids")).map_err(|error| jail(&error))?;
        let cgroups =
            Tree::create(facts, &tag, for_sandboxes(facts.memory)).map_err(|error| jail(&error))?;
        let disk = match storage::open(storage, &directory, facts) {
            Ok(disk) => disk,
            Err(error) => {
                // What cannot be taken away now is left to a collector.
                let _ = dismantle(&tag, &directory, &cgroups);
                return Err(error);
            }
        };
        Ok(Self {
            tag,
            directory,
            lock,
            ranges,
            cgroups,
            disk,
            lasting: None,
        })
    }

    /// The instance of a data directory, which is there for good. `held` is what its keeper held, if there
    /// is one: the lock of the instance, then the claims on ids.
    pub(crate) fn lasting(
        data: &Path,
        own: File,
        held: Vec<OwnedFd>,
        storage: Storage,
        facts: &Facts,
    ) -> Result<Self, Error> {
        private_directory(Path::new(SHARED))?;
        let registry = Path::new(SHARED).join("instances");
        private_directory(&registry)?;
        for part in ["sandboxes", "trash", "orphaned"] {
            private_directory(&data.join(part))?;
        }
        spread(&data.join("sandboxes"));
        storage::remembered(data, storage)?;
        let disk = storage::open(storage, data, facts)?;
        let mut held = held.into_iter();
        let (tag, lock) = match (read_tag(data), held.next()) {
            (Some(tag), Some(lock)) => (tag, File::from(lock)),
            (tag, None) => register_lasting(&registry, data, tag)?,
            (None, Some(_)) => {
                let message = format!("{} has lost its tag", data.display());
                return Err(Error::new(Code::Internal, message));
            }
        };
        let ranges = if let Some(claims) = held.next() {
            Ranges::take_over(claims)
        } else {
            // Without a keeper nobody lives, whatever is left of their groups.
            let left = Tree::of(facts, &tag).and_then(|tree| tree.destroy());
            left.map_err(|error| jail(&error))?;
            Ranges::open(&Path::new(SHARED).join("ids")).map_err(|error| jail(&error))?
        };
        let cgroups =
            Tree::create(facts, &tag, for_sandboxes(facts.memory)).map_err(|error| jail(&error))?;
        Ok(Self {
            tag,
            directory: data.to_owned(),
            lock,
            ranges,
            cgroups,
            disk,
            lasting: Some(own),
        })
    }

    /// Where its sandboxes' files are.
    pub(crate) fn sandboxes(&self) -> PathBuf {
        self.directory.join("sandboxes")
    }

    /// Where those of one of them are.
    pub(crate) fn sandbox(&self, id: &SandboxId) -> PathBuf {
        self.sandboxes().join(id.as_str())
    }

    /// Where files wait to be removed.
    pub(crate) fn trash(&self) -> PathBuf {
        self.directory.join("trash")
    }

    /// Takes everything of this instance away. Its sandboxes have ended before.
    pub(crate) fn dismantle(&self) -> Result<(), Error> {
        self.disk.close();
        if self.lasting.is_none() {
            return dismantle(&self.tag, &self.directory, &self.cgroups);
        }
        // A keeper that we did not start is on its way out, and in one of these.
        self.cgroups.destroy().map_err(|error| jail(&error))?;
        storage::dismantle(&self.directory)?;
        // At once, so that whoever comes now finds either all of it or a free name.
        let aside = named::aside(&self.directory, &self.tag);
        fs::rename(&self.directory, &aside)
            .map_err(|error| host_file("move to", &aside, &error))?;
        dismantle(&self.tag, &aside, &self.cgroups)
    }
}

/// Makes sure that nobody else serves a data directory.
pub(crate) fn lock_data(data: &Path) -> Result<File, Error> {
    loop {
        let file = try_lock_data(data)?;
        // Somebody may have removed the directory between our opening and our locking it.
        let (ours, there) = (file.metadata(), fs::metadata(data.join("lock")));
        use std::os::unix::fs::MetadataExt;
        if let (Ok(ours), Ok(there)) = (ours, there)
            && (ours.dev(), ours.ino()) == (there.dev(), there.ino())
        {
            return Ok(file);
        }
    }
}

fn try_lock_data(data: &Path) -> Result<File, Error> {
    data_directory(data)?;
    let path = data.join("lock");
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path);
    let mut file = opened.map_err(|error| host_file("open", &path, &error))?;
    if file.try_lock().is_err() {
        let mut holder = String::new();
        let _ = file.read_to_string(&mut holder);
        let message = format!("{} is served by process {}", data.display(), holder.trim());
        return Err(Error::new(Code::Conflict, message)
            .detail("pid", holder.trim())
            .remedy("end that one first, or choose another data directory"));
    }
    let written = file
        .set_len(0)
        .and_then(|()| file.write_all(std::process::id().to_string().as_bytes()));
    written.map_err(|error| host_file("write", &path, &error))?;
    Ok(file)
}

fn read_tag(data: &Path) -> Option<String> {
    let tag = fs::read_to_string(data.join("tag")).ok()?;
    let plain = tag.len() == 4 && tag.bytes().all(|byte| byte.is_ascii_alphanumeric());
    plain.then_some(tag)
}

/// Registers a data directory's instance, by the tag it had before if that is still free.
fn register_lasting(
    registry: &Path,
    data: &Path,
    tag: Option<String>,
) -> Result<(String, File), Error> {
    if let Some(tag) = tag {
        let path = registry.join(&tag);
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path);
        let mut file =
            opened.map_err(|error| host_file("register an instance in", &path, &error))?;
        wait_for_lock(&file, &tag)?;
        if path.exists() {
            let written = file
                .set_len(0)
                .and_then(|()| file.write_all(data.as_os_str().as_encoded_bytes()));
            written.map_err(|error| host_file("register an instance in", &path, &error))?;
            return Ok((tag, file));
        }
    }
    let (tag, file) = register(registry, |_| data.to_owned())?;
    let path = data.join("tag");
    fs::write(&path, &tag).map_err(|error| host_file("write", &path, &error))?;
    Ok((tag, file))
}

/// Waits for the lock of an instance that is ours by its data directory's lock: only its keeper, on its way
/// out, can still have it.
fn wait_for_lock(file: &File, tag: &str) -> Result<(), Error> {
    let until = std::time::Instant::now() + KEEPER_ENDS;
    while file.try_lock().is_err() {
        if std::time::Instant::now() >= until {
            let message = format!("the keeper of instance {tag} lives but does not answer");
            return Err(Error::new(Code::Conflict, message)
                .detail("tag", tag)
                .remedy(format!("end the process \"atoll-keeper {tag}\" first")));
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    Ok(())
}

/// Asks ext4 to put what is made in a directory into block groups far from each other. Otherwise all
/// sandboxes share one, and every new file there steps over all that were deleted lately.
fn spread(path: &Path) {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    if let Ok(directory) = File::open(path)
        && let Ok(flags) = ioctl_getflags(&directory)
    {
        // Other file systems do not know the flag, and do not need it.
        let _ = ioctl_setflags(&directory, flags | IFlags::TOPDIR);
    }
}

/// What is left to sandboxes after the host's reserve.
fn for_sandboxes(memory: u64) -> u64 {
    memory.saturating_sub(crate::reserve::memory_reserve(memory))
}

/// Finds a tag nobody has and takes its lock.
fn register(registry: &Path, directory: impl Fn(&str) -> PathBuf) -> Result<(String, File), Error> {
    for _ in 0..100 {
        let tag = random_tag();
        let path = registry.join(&tag);
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        let mut file = match made {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(host_file("register an instance in", &path, &error)),
        };
        // Between making and locking it a collector may have found it dead and removed it.
        let locked = file.try_lock().is_ok() && path.exists();
        if locked {
            let written = file.write_all(directory(&tag).as_os_str().as_encoded_bytes());
            written.map_err(|error| host_file("register an instance in", &path, &error))?;
            return Ok((tag, file));
        }
    }
    Err(Error::new(Code::NoCapacity, "no free instance tag was found").remedy("run atoll gc"))
}

fn random_tag() -> String {
    atoll_model::SandboxId::random().as_str()[1..5].to_owned()
}

/// Makes a data directory for root alone. One that is there and open to others is refused: ids in
/// it start at 0, so a setuid file of a sandbox's root would be one of the host's.
pub fn data_directory(path: &Path) -> Result<(), Error> {
    use std::os::unix::fs::MetadataExt;
    private_directory(path)?;
    let found = fs::metadata(path).map_err(|error| host_file("look at", path, &error))?;
    if !found.is_dir() || found.mode() & 0o077 != 0 || found.uid() != 0 {
        let message = format!(
            "the data directory {} is open to others than root",
            path.display()
        );
        let remedy = format!(
            "chown root {0} && chmod 700 {0}, or choose another by ATOLL_DATA_DIR",
            path.display()
        );
        return Err(Error::invalid("data directory", message, remedy));
    }
    Ok(())
}

pub(crate) fn private_directory(path: &Path) -> Result<(), Error> {
    match fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
    {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(host_file("make", path, &error))
        }
        _ => Ok(()),
    }
}

fn dismantle(tag: &str, directory: &Path, cgroups: &Tree) -> Result<(), Error> {
    cgroups.destroy().map_err(|error| jail(&error))?;
    storage::dismantle(directory)?;
    remove_directory(directory)?;
    let entry = Path::new(SHARED).join("instances").join(tag);
    match fs::remove_file(&entry) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(host_file("remove", &entry, &error))
        }
        _ => Ok(()),
    }
}

/// Removes a directory that may hold a hostile tree.
pub(crate) fn remove_directory(path: &Path) -> Result<(), Error> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(());
    };
    let parent = match File::open(parent) {
        Ok(parent) => parent,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(host_file("open", parent, &error)),
    };
    use std::os::fd::AsFd;
    tree::remove(parent.as_fd(), name).map_err(|error| host_file("remove", path, &error))
}

/// Which dead instances `collect` looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope<'a> {
    /// Those below this data directory.
    Below(&'a Path),
    /// Those of the whole host.
    Host,
}

/// Takes away what dead instances left: control groups, links, rules, directories, registrations. Living ones,
/// and what users chose to keep, are not touched.
pub fn collect(scope: Scope<'_>, facts: &Facts) -> Result<Collected, Error> {
    let mut collected = Collected::default();
    let registry = Path::new(SHARED).join("instances");
    let entries = match fs::read_dir(&registry) {
        Ok(entries) => entries.flatten().map(|entry| entry.file_name()).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(host_file("read", &registry, &error)),
    };
    for tag in entries.iter().filter_map(|name| name.to_str()) {
        match collect_one(tag, &registry.join(tag), scope, facts) {
            Ok(true) => collected.instances.push(tag.to_owned()),
            Ok(false) => {}
            Err(error) => collected.problems.push(format!("{tag}: {error}")),
        }
    }
    // After a reboot the registrations are gone and only directories are left.
    if let Scope::Below(data) = scope {
        for entry in fs::read_dir(data.join("runs"))
            .into_iter()
            .flatten()
            .flatten()
        {
            if !registry.join(entry.file_name()).exists() {
                let removed = storage::dismantle(&entry.path());
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
    collected.instances.sort();
    collected.instances.dedup();
    Ok(collected)
}

/// Where the sandboxes that users chose to keep are.
pub fn kept(data: &Path) -> PathBuf {
    data.join("kept")
}

/// Removes the sandboxes that users chose to keep; how many there were.
pub fn remove_kept(data: &Path) -> Result<usize, Error> {
    let entries = fs::read_dir(kept(data)).into_iter().flatten().flatten();
    let paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.iter().try_for_each(|path| remove_directory(path))?;
    Ok(paths.len())
}

/// Takes one instance away if it is dead and in scope.
fn collect_one(tag: &str, entry: &Path, scope: Scope<'_>, facts: &Facts) -> Result<bool, Error> {
    let mut file = match File::open(entry) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(host_file("open", entry, &error)),
    };
    if file.try_lock().is_err() {
        return Ok(false);
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)
        .map_err(|error| host_file("read", entry, &error))?;
    use std::os::unix::ffi::OsStringExt;
    let directory = PathBuf::from(std::ffi::OsString::from_vec(bytes));
    let own = read_tag(&directory);
    // One that died before its tag was written down is told by where it is.
    let lasting = own.is_some() || named::holds(&directory);
    if let Scope::Below(data) = scope
        && !directory.starts_with(data.join("runs"))
        && !directory.starts_with(data.join(named::DIRECTORY))
        && !(lasting && directory == data)
    {
        return Ok(false);
    }
    // An entry without a directory died before it had one.
    let cgroups = Tree::of(facts, tag).map_err(|error| jail(&error))?;
    if directory.as_os_str().is_empty() {
        fs::remove_file(entry).map_err(|error| internal("remove a registration", &error))?;
        return Ok(true);
    }
    crate::network::collect(tag)?;
    // Only a directory of the form that we make for a run is ever removed.
    let for_one_run = directory.file_name().is_some_and(|name| name == tag);
    if lasting || !for_one_run || !directory.exists() {
        // Its processes are gone; its files are there for good, or somebody removed them.
        cgroups.destroy().map_err(|error| jail(&error))?;
        // One that goes on under another tag has its files in use.
        if own.is_none_or(|own| own == tag) {
            storage::dismantle(&directory)?;
        }
        fs::remove_file(entry).map_err(|error| internal("remove a registration", &error))?;
        return Ok(true);
    }
    dismantle(tag, &directory, &cgroups)?;
    Ok(true)
}

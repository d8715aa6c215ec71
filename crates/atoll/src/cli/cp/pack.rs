//! Uploads: a blocking thread reads files and packs them while the archive is sent.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_client::{Body, Client, Request, RequestError, Response, RetryPolicy};
use atoll_model::{Code, Error};
use bytes::{Bytes, BytesMut};
use http_body_util::StreamBody;
use hyper::body::Frame;
use indicatif::ProgressBar;
use serde_json::Value;
use tar::{Builder, EntryType, Header};
use tokio::sync::mpsc;

use super::super::server_args::plain;
use super::{bar, report_skipped};

/// Size of a chunk.
const CHUNK: usize = 256 << 10;
/// Capacity of the channel between reader and sender, in chunks.
const AHEAD: usize = 8;
/// Timeout while the server accepts no data.
const STALLED: Duration = Duration::from_mins(2);

/// Which owner and mode bits of a file the archive contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attributes {
    /// Permission bits only: owners of this machine have no meaning in a sandbox.
    Permissions,
    /// Owner, group and all mode bits, for the root file system of a template.
    All,
}

/// Uploads one file.
pub(super) async fn file(
    client: &Client,
    path: &str,
    source: &Path,
    size: u64,
) -> Result<(), Error> {
    let retry = RetryPolicy::new(true);
    send_file(client, &put(path), retry, source, size)
        .await
        .map(|_| ())
}

/// Uploads a template: a directory is packed, an archive is sent as it is. It is sent once, because a template that was
/// added before the connection broke would be a conflict.
pub(crate) async fn template(client: &Client, path: &str, source: &Path) -> Result<Value, Error> {
    let found = fs::metadata(source).map_err(|error| unreadable(source, &error))?;
    let request = Request::post_bytes(path, Bytes::new());
    let retry = RetryPolicy::new(false);
    let answer = if found.is_dir() {
        send_tree(client, &request, retry, source, Attributes::All).await?
    } else {
        send_file(client, &request, retry, source, found.len()).await?
    };
    answer.json()
}

fn put(path: &str) -> Request {
    Request::put(path).header("content-type", "application/octet-stream")
}

async fn send_file(
    client: &Client,
    request: &Request,
    retry: RetryPolicy,
    source: &Path,
    size: u64,
) -> Result<Response, Error> {
    let shown = bar(&name(source), Some(size));
    let source = source.to_owned();
    let sent = send(client, request, retry, &shown, move |mut out| {
        let mut file = File::open(&source).map_err(|error| unreadable(&source, &error))?;
        let mut part = vec![0; CHUNK];
        loop {
            let count = file.read(&mut part);
            match count.map_err(|error| unreadable(&source, &error))? {
                0 => return out.flush().map_err(|error| gone(&error)),
                count => out
                    .write_all(part.get(..count).unwrap_or_default())
                    .map_err(|error| gone(&error))?,
            }
        }
    });
    sent.await
}

/// Uploads a directory recursively, as an archive.
pub(super) async fn directory(client: &Client, path: &str, source: &Path) -> Result<(), Error> {
    let (request, retry) = (put(path), RetryPolicy::new(true));
    let sent = send_tree(client, &request, retry, source, Attributes::Permissions);
    let answer = sent.await?.json()?;
    let skipped = answer["skippedEntries"].as_array();
    let skipped: Vec<String> = skipped
        .into_iter()
        .flatten()
        .map(|entry| {
            let part = |name: &str| plain(entry[name].as_str().unwrap_or_default());
            format!("{} ({})", part("name"), part("why"))
        })
        .collect();
    report_skipped(answer["skipped"].as_u64().unwrap_or(0), &skipped);
    Ok(())
}

async fn send_tree(
    client: &Client,
    request: &Request,
    retry: RetryPolicy,
    source: &Path,
    attributes: Attributes,
) -> Result<Response, Error> {
    // The total size is needed for the progress bar only.
    let shown = bar(&name(source), None);
    let left_out = Arc::new(Mutex::new((0, Vec::new())));
    let top = source.to_owned();
    let skipped = Arc::clone(&left_out);
    let answer = send(client, request, retry, &shown, move |out| {
        let mut packing = Packing {
            attributes,
            archive: Builder::new(out),
            linked: HashMap::new(),
            left_out: (0, Vec::new()),
        };
        packing.tree(&top)?;
        *skipped.lock().unwrap_or_else(PoisonError::into_inner) = packing.left_out;
        let done = packing.archive.into_inner().and_then(|mut out| out.flush());
        done.map_err(|error| gone(&error))
    });
    let answer = answer.await?;
    let (count, names) = &*left_out.lock().unwrap_or_else(PoisonError::into_inner);
    report_skipped(*count, names);
    Ok(answer)
}

/// Uploads what a writer function produces; starts from the beginning if the connection breaks and
/// the retry policy allows it.
async fn send(
    client: &Client,
    request: &Request,
    mut retry: RetryPolicy,
    shown: &ProgressBar,
    work: impl Fn(Out) -> Result<(), Error> + Clone + Send + 'static,
) -> Result<Response, Error> {
    loop {
        shown.set_position(0);
        let failed = Arc::new(Mutex::new(None));
        let sent = Arc::new(AtomicU64::new(0));
        let (body, out) = body(Arc::clone(&sent), shown.clone());
        let (work, failure) = (work.clone(), Arc::clone(&failed));
        std::thread::spawn(move || {
            let sender = out.sender.clone();
            if let Err(error) = work(out) {
                *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                // The body is aborted, so that the server does not take it for complete.
                let _ = sender.blocking_send(Err(io::ErrorKind::Interrupted.into()));
            }
        });
        let answer = tokio::select! {
            answer = client.upload(request, body) => answer,
            () = stalled(&sent) => {
                let seconds = STALLED.as_secs();
                let message = format!("{} takes nothing for {seconds} s", client.target());
                Err(RequestError::ConnectionLost(Error::new(Code::Timeout, message)))
            }
        };
        let own = failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (answer, own) {
            (Ok(answer), _) => {
                shown.finish_and_clear();
                return Ok(answer);
            }
            // If the receiver is gone, the error of the request is reported instead.
            (Err(RequestError::ConnectionLost(_)), Some(error)) if error.code != Code::Timeout => {
                return Err(error);
            }
            (Err(failure), _) => retry.after(client, failure).await?,
        }
    }
}

/// Returns when the server has accepted no data for too long.
async fn stalled(sent: &AtomicU64) {
    let mut before = None;
    loop {
        let now = Some(sent.load(Ordering::Relaxed));
        if now == before {
            return;
        }
        before = now;
        tokio::time::sleep(STALLED).await;
    }
}

/// Writer whose data is sent in chunks.
struct Out {
    sender: mpsc::Sender<io::Result<Bytes>>,
    part: BytesMut,
}

fn body(sent: Arc<AtomicU64>, shown: ProgressBar) -> (Body, Out) {
    let (sender, parts) = mpsc::channel::<io::Result<Bytes>>(AHEAD);
    let stream = futures_util::stream::unfold(parts, move |mut parts| {
        let (sent, shown) = (Arc::clone(&sent), shown.clone());
        async move {
            let part = parts.recv().await?;
            if let Ok(part) = &part {
                sent.fetch_add(part.len() as u64, Ordering::Relaxed);
                shown.inc(part.len() as u64);
            }
            Some((part.map(Frame::data), parts))
        }
    });
    let part = BytesMut::with_capacity(CHUNK);
    (Body::new(StreamBody::new(stream)), Out { sender, part })
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(CHUNK - self.part.len());
        self.part
            .extend_from_slice(bytes.get(..count).unwrap_or_default());
        if self.part.len() == CHUNK {
            self.flush()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.part.is_empty() {
            return Ok(());
        }
        let part = std::mem::replace(&mut self.part, BytesMut::with_capacity(CHUNK));
        let sent = self.sender.blocking_send(Ok(part.freeze()));
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

struct Packing {
    attributes: Attributes,
    archive: Builder<Out>,
    /// Path in the archive of each file with several hard links, by device and inode.
    linked: HashMap<(u64, u64), PathBuf>,
    left_out: (u64, Vec<String>),
}

impl Packing {
    fn tree(&mut self, top: &Path) -> Result<(), Error> {
        let mut waiting = vec![PathBuf::new()];
        while let Some(below) = waiting.pop() {
            let directory = top.join(&below);
            let found = fs::metadata(&directory).map_err(|error| unreadable(&directory, &error))?;
            self.add(
                &Path::new(".").join(&below),
                EntryType::Directory,
                &found,
                None,
            )?;
            let names = fs::read_dir(&directory).map_err(|error| unreadable(&directory, &error))?;
            for entry in names {
                let entry = entry.map_err(|error| unreadable(&directory, &error))?;
                let below = below.join(entry.file_name());
                let kind = entry
                    .file_type()
                    .map_err(|error| unreadable(&entry.path(), &error))?;
                if kind.is_dir() {
                    waiting.push(below);
                } else if kind.is_symlink() {
                    self.link(&entry.path(), &below)?;
                } else if kind.is_file() {
                    self.file(&entry.path(), &below)?;
                } else {
                    self.leave_out(&below);
                }
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, below: &Path) -> Result<(), Error> {
        let file = File::open(path).map_err(|error| unreadable(path, &error))?;
        let found = file.metadata().map_err(|error| unreadable(path, &error))?;
        if found.nlink() > 1 {
            let known = self.linked.entry((found.dev(), found.ino()));
            match known {
                std::collections::hash_map::Entry::Occupied(known) => {
                    let first = known.get().clone();
                    return self.add(below, EntryType::Link, &found, Some(&first));
                }
                std::collections::hash_map::Entry::Vacant(unknown) => {
                    unknown.insert(below.to_owned());
                }
            }
        }
        let mut header = self.header(EntryType::Regular, &found);
        header.set_size(found.len());
        // Exactly the size in the header, or the archive is invalid.
        let contents = file
            .take(found.len())
            .chain(io::repeat(0))
            .take(found.len());
        let added = self.archive.append_data(&mut header, below, contents);
        added.map_err(|error| packing_error(path, &error))
    }

    fn link(&mut self, path: &Path, below: &Path) -> Result<(), Error> {
        let found = fs::symlink_metadata(path).map_err(|error| unreadable(path, &error))?;
        let target = fs::read_link(path).map_err(|error| unreadable(path, &error))?;
        self.add(below, EntryType::Symlink, &found, Some(&target))
    }

    /// Appends an entry without contents.
    fn add(
        &mut self,
        below: &Path,
        kind: EntryType,
        found: &Metadata,
        target: Option<&Path>,
    ) -> Result<(), Error> {
        let mut header = self.header(kind, found);
        let added = match target {
            Some(target) => self.archive.append_link(&mut header, below, target),
            None => self.archive.append_data(&mut header, below, io::empty()),
        };
        added.map_err(|error| packing_error(below, &error))
    }

    fn header(&self, kind: EntryType, found: &Metadata) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        let (mode, owner, group) = match self.attributes {
            Attributes::Permissions => (0o777, 0, 0),
            Attributes::All => (0o7777, found.uid(), found.gid()),
        };
        header.set_mode(found.mode() & mode);
        header.set_uid(owner.into());
        header.set_gid(group.into());
        header.set_mtime(found.mtime().try_into().unwrap_or(0));
        header.set_size(0);
        header
    }

    fn leave_out(&mut self, below: &Path) {
        self.left_out.0 += 1;
        if self.left_out.1.len() < 10 {
            let name = String::from_utf8_lossy(below.as_os_str().as_bytes()).into_owned();
            self.left_out.1.push(format!("{name} (a special file)"));
        }
    }
}

fn name(source: &Path) -> String {
    source.file_name().map_or_else(
        || source.display().to_string(),
        |name| name.to_string_lossy().into_owned(),
    )
}

pub(super) fn unreadable(path: &Path, error: &io::Error) -> Error {
    let message = format!("{} cannot be read: {error}", path.display());
    let code = match error.kind() {
        io::ErrorKind::NotFound => Code::FileNotFound,
        io::ErrorKind::PermissionDenied => Code::PermissionDenied,
        _ => Code::InvalidRequest,
    };
    Error::new(code, message).remedy("name a file or a directory of this machine")
}

/// Error for a file that could not be packed.
fn packing_error(path: &Path, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => gone(error),
        _ => unreadable(path, error),
    }
}

/// Error of a write after the receiver was dropped.
fn gone(error: &io::Error) -> Error {
    Error::new(Code::Timeout, format!("the server takes no more: {error}"))
}

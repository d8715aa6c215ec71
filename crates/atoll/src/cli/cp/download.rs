//! Downloads of files, resumed after a broken connection.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use atoll_client::{Client, Request, RequestError, RetryPolicy};
use atoll_model::{Code, Error};
use futures_util::StreamExt as _;
use http_body_util::BodyExt as _;

use super::bar;

/// Timeout between two parts of the response.
const SILENCE: Duration = Duration::from_mins(1);

/// Saves a file atomically, unless the target is not a regular file.
pub(super) async fn save(
    client: &Client,
    path: &str,
    target: &Path,
    mode: u32,
    size: u64,
) -> Result<(), Error> {
    let shown = bar(&target.display().to_string(), Some(size));
    let mut tell = |count| shown.inc(count);
    if fs::metadata(target).is_ok_and(|found| !found.is_file()) {
        let opened = OpenOptions::new().write(true).open(target);
        let mut out = opened.map_err(|error| unwritable(target, &error))?;
        file(client, path, &mut out, &mut tell).await?;
        shown.finish_and_clear();
        return Ok(());
    }
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let new = target.with_file_name(format!(".{name}.atoll-{}", std::process::id()));
    let opened = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new);
    let mut out = opened.map_err(|error| unwritable(target, &error))?;
    let saved = file(client, path, &mut out, &mut tell).await;
    let saved = saved.and_then(|()| put(&out, &new, target, mode));
    if saved.is_err() {
        let _ = fs::remove_file(&new);
    }
    shown.finish_and_clear();
    saved
}

/// Sets the mode of a file, without setuid and setgid, and renames it to its final name.
fn put(file: &File, new: &Path, target: &Path, mode: u32) -> Result<(), Error> {
    let put = file
        .set_permissions(fs::Permissions::from_mode(mode & 0o777))
        .and_then(|()| fs::rename(new, target));
    put.map_err(|error| unwritable(target, &error))
}

/// Writes each byte of a file once to a writer, across reconnects.
pub(crate) async fn file(
    client: &Client,
    path: &str,
    out: &mut impl Write,
    on_progress: &mut impl FnMut(u64),
) -> Result<(), Error> {
    let mut retry = RetryPolicy::new(true);
    let (mut position, mut size) = (0_u64, None::<String>);
    loop {
        let mut request = Request::get(path);
        if position > 0 {
            request = request.header("range", format!("bytes={position}-"));
        }
        let response = match client.send_once(&request).await {
            Ok(response) => response,
            // All bytes were received; only the end of the response was lost.
            Err(RequestError::Rejected(error))
                if position > 0
                    && error.code == Code::RangeNotSatisfiable
                    && error.details.get("size") == Some(&position.to_string()) =>
            {
                return Ok(());
            }
            Err(failure) => {
                retry.after(client, failure).await?;
                continue;
            }
        };
        let header = |name: &str| {
            let value = response.headers().get(name)?.to_str().ok()?;
            Some(value.rsplit('/').next().unwrap_or_default().to_owned())
        };
        let now = header("content-range").or_else(|| header("x-file-size"));
        if position > 0 && (response.status().as_u16() != 206 || now != size) {
            let message = "the file changed while the connection was broken";
            return Err(Error::new(Code::Conflict, message).remedy("copy it again"));
        }
        size = now;
        let mut body = response.into_body().into_data_stream();
        let broke = loop {
            match tokio::time::timeout(SILENCE, body.next()).await {
                Ok(Some(Ok(bytes))) => {
                    retry.reset();
                    position += bytes.len() as u64;
                    on_progress(bytes.len() as u64);
                    match out.write_all(&bytes) {
                        // The reader has closed the pipe.
                        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                        written => written.map_err(|error| unwritable(Path::new("it"), &error))?,
                    }
                }
                Ok(None) => {
                    let flushed = out.flush();
                    return flushed.map_err(|error| unwritable(Path::new("it"), &error));
                }
                Ok(Some(Err(error))) => break error.to_string(),
                Err(_) => break format!("nothing came for {} s", SILENCE.as_secs()),
            }
        };
        let message = format!("the connection to {} broke: {broke}", client.target());
        let failure = RequestError::ConnectionLost(Error::new(Code::Timeout, message));
        retry.after(client, failure).await?;
    }
}

pub(super) fn unwritable(path: &Path, error: &io::Error) -> Error {
    let code = match error.kind() {
        io::ErrorKind::NotFound => Code::FileNotFound,
        io::ErrorKind::PermissionDenied => Code::PermissionDenied,
        io::ErrorKind::StorageFull => Code::DiskFull,
        _ => Code::InvalidRequest,
    };
    let message = format!("{} cannot be written: {error}", path.display());
    Error::new(code, message).remedy("name a place of this machine that you may write to")
}

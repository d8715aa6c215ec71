//! Conversion of I/O errors, errno values and jail errors to the API's [`Error`].

use std::io;
use std::path::Path;

use atoll_model::{Code, Error};

/// An internal error: the failed step with the chain of its causes. If a cause is that the process
/// is out of file descriptors, it is `NoCapacity` instead.
pub(crate) fn internal(step: &str, error: &(dyn std::error::Error + 'static)) -> Error {
    if is_out_of_fds(error) {
        return Error::new(Code::NoCapacity, "the server is out of file descriptors").remedy(
            "try again; if it persists, raise the server's limit of open files (LimitNOFILE)",
        );
    }
    Error::new(Code::Internal, with_causes(step, error))
}

/// Whether a cause is EMFILE or ENFILE: temporary, and no fault of the request.
fn is_out_of_fds(error: &(dyn std::error::Error + 'static)) -> bool {
    use rustix::io::Errno;
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|cause| {
        let number = cause
            .downcast_ref()
            .and_then(|error: &io::Error| Errno::from_io_error(error));
        matches!(number, Some(Errno::MFILE | Errno::NFILE))
    })
}

/// The sandbox is at its pids limit.
pub(crate) fn too_many_processes() -> Error {
    Error::new(Code::QuotaExceeded, "the sandbox is at its process limit")
        .remedy("end some of its processes, or raise its pids limit")
}

fn with_causes(step: &str, error: &(dyn std::error::Error + 'static)) -> String {
    let mut message = step.to_owned();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        if !message.ends_with(&text) {
            message = format!("{message}: {text}");
        }
        next = error.source();
    }
    message
}

/// Converts an error of `atoll-jail`.
pub(crate) fn jail(error: &atoll_jail::Error) -> Error {
    match error {
        atoll_jail::Error::Unsupported {
            feature,
            why,
            remedy,
        } => Error::new(
            Code::UnsupportedByHost,
            format!("this host cannot provide {feature}: {why}"),
        )
        .remedy(format!(
            "{remedy}; atoll doctor lists what this host supports"
        ))
        .detail("feature", *feature),
        atoll_jail::Error::Step { source, .. } if is_disk_full(source) => Error::new(
            Code::DiskFull,
            with_causes("the disk of the data directory is full", error),
        )
        .remedy("free some space, or run atoll gc"),
        atoll_jail::Error::Step { .. } => internal("the sandbox could not be set up", error),
    }
}

/// A file operation on a path of the host failed.
pub(crate) fn host_file_error(step: &str, path: &Path, error: &io::Error) -> Error {
    let message = with_causes(&format!("{step} {}", path.display()), error);
    if is_disk_full(error) {
        return Error::new(Code::DiskFull, message).remedy("free some space, or run atoll gc");
    }
    match internal(step, error) {
        error if error.code == Code::Internal => Error::new(Code::Internal, message),
        error => error,
    }
}

fn is_disk_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// The kernel refused a file operation on a path inside a sandbox.
pub(crate) fn sandbox_file_error(errno: i32, path: &[u8]) -> Error {
    let path = String::from_utf8_lossy(path).into_owned();
    let error = io::Error::from_raw_os_error(errno);
    use rustix::io::Errno;
    let errno = Errno::from_raw_os_error(errno);
    let (code, what) = match errno {
        Errno::NOENT => (Code::FileNotFound, "no such file or directory".to_owned()),
        Errno::ACCESS | Errno::PERM => (
            Code::PermissionDenied,
            "permission denied in the sandbox".to_owned(),
        ),
        Errno::ROFS => (
            Code::PermissionDenied,
            "read-only in the sandbox".to_owned(),
        ),
        Errno::EXIST => (Code::FileExists, "file exists".to_owned()),
        Errno::NOTDIR => (Code::NotADirectory, "not a directory".to_owned()),
        Errno::ISDIR => (Code::NotAFile, "a directory".to_owned()),
        Errno::NOTEMPTY => (Code::Conflict, "the directory is not empty".to_owned()),
        Errno::NOSPC | Errno::DQUOT => (Code::DiskFull, "no space left in the sandbox".to_owned()),
        Errno::NAMETOOLONG => (Code::InvalidRequest, "the name is too long".to_owned()),
        Errno::LOOP => (Code::InvalidRequest, "too many symbolic links".to_owned()),
        Errno::NOTSUP => (
            Code::InvalidRequest,
            "its file system does not support extended attributes".to_owned(),
        ),
        Errno::INVAL | Errno::XDEV | Errno::BUSY | Errno::TXTBSY => {
            (Code::InvalidRequest, error.to_string())
        }
        _ => (Code::Internal, error.to_string()),
    };
    let mut failed = Error::new(code, format!("{path:?}: {what}")).detail("path", path);
    failed.remedy = remedy(errno).map(ToOwned::to_owned);
    if errno == Errno::LOOP {
        return failed.detail("errno", "ELOOP");
    }
    failed
}

/// Remedy by errno.
fn remedy(errno: rustix::io::Errno) -> Option<&'static str> {
    use rustix::io::Errno;
    Some(match errno {
        Errno::NOENT => "check the path: a relative one starts at the user's home",
        Errno::ACCESS | Errno::PERM => {
            "use another user of the sandbox, such as root, or another path"
        }
        Errno::ROFS => "choose another path",
        Errno::EXIST => "choose another name, or remove it first",
        Errno::NOTDIR => NAME_A_DIRECTORY,
        Errno::ISDIR => "name a regular file",
        Errno::NOTEMPTY => "remove it recursively",
        Errno::NOSPC | Errno::DQUOT => "remove something there, or give the sandbox more disk",
        Errno::NAMETOOLONG => "choose a shorter name",
        Errno::LOOP => "use the path of the file itself",
        Errno::NOTSUP => "leave them out, or choose another path",
        Errno::XDEV => "copy it and remove the original",
        Errno::BUSY | Errno::TXTBSY => "stop the process that uses it",
        _ => return None,
    })
}

/// Remedy for operations that need a directory.
pub(crate) const NAME_A_DIRECTORY: &str =
    "use a directory; every component of a path but the last has to be one";

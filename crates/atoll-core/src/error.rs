//! Conversion of store errors to API errors.

use atoll_model::{Code, Error};
use std::error::Error as _;

/// Converts a store error. The cause of an internal error is logged here and not sent to the client.
pub(crate) fn store(error: atoll_store::Error) -> Error {
    match error {
        atoll_store::Error::IdempotencyKeyTaken => atoll_model::Idempotency::mismatch_error(),
        atoll_store::Error::AlreadyExists(what) => {
            Error::new(Code::Conflict, format!("{what} is taken")).remedy("choose another")
        }
        atoll_store::Error::OrgNotFound => Error::new(Code::OrgNotFound, "there is no such org"),
        error if error.is_disk_full() => {
            tracing::error!("the disk of the server's records is full");
            Error::new(Code::DiskFull, "the server's disk is full")
                .remedy("free space on the disk of the data directory")
        }
        error if error.is_corrupt() => {
            let cause = error.source().map(ToString::to_string);
            tracing::error!(cause = cause.as_deref(), "{error}");
            Error::new(Code::Internal, "the server's database is damaged").remedy(
                "the operator can stop the server and restore a backup: atoll backup restore BACKUP",
            )
        }
        error if error.is_unavailable() => {
            let cause = error.source().map(ToString::to_string);
            tracing::warn!(cause = cause.as_deref(), "{error}");
            Error::new(Code::NoCapacity, "the server's database does not respond")
                .remedy("try again a little later; existing sandboxes can be used meanwhile")
                .detail("dependency", "database")
        }
        error => {
            let cause = error.source().map(ToString::to_string);
            tracing::error!(cause = cause.as_deref(), "{error}");
            Error::new(
                Code::Internal,
                "the server cannot read or write its records",
            )
            .remedy("try again; if it goes on, give the request_id to the operator of the server")
        }
    }
}

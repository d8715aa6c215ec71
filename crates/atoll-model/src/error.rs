//! Error codes of the API and the error type that carries them.
//!
//! The table below maps every code to its HTTP status, WebSocket close code, category and exit code. The table is part
//! of the API: a snapshot test compares it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{Object, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// Class of an error. It determines the exit code of the CLI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// The request is invalid.
    Validation,
    /// The caller is not authenticated or not authorized.
    Auth,
    /// The resource does not exist.
    NotFound,
    /// The operation conflicts with the current state of the resource.
    Conflict,
    /// A size limit is exceeded.
    Quota,
    /// A limit on concurrent resources or on requests per second is reached.
    RateLimit,
    /// This host cannot carry out the operation now, or does not support it.
    ProviderUnavailable,
    /// An operation did not complete in time.
    ProviderTimeout,
    /// A failure of the server.
    Internal,
}

macro_rules! codes {
    ($( $(#[doc = $doc:literal])* $variant:ident = $name:literal, $status:literal, $close:literal, $category:ident; )*) => {
        /// Code of an error. Clients decide by it, not by the message.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Code {
            $( $(#[doc = $doc])* #[serde(rename = $name)] $variant, )*
        }
        impl Code {
            /// All codes in the order of the table.
            pub const ALL: &[Self] = &[$( Self::$variant ),*];

            /// The code as written in responses.
            pub fn name(self) -> &'static str {
                match self { $( Self::$variant => $name, )* }
            }
            /// HTTP status of a response with this code.
            pub fn status(self) -> u16 {
                match self { $( Self::$variant => $status, )* }
            }
            /// Close code of a WebSocket that ends with this error.
            pub fn close_code(self) -> u16 {
                match self { $( Self::$variant => $close, )* }
            }
            /// Explanation for the documentation.
            pub fn meaning(self) -> &'static str {
                match self { $( Self::$variant => concat!($( $doc ),*).trim_ascii(), )* }
            }
            /// Class of the error.
            pub fn category(self) -> Category {
                match self { $( Self::$variant => Category::$category, )* }
            }
        }
    };
}

codes! {
    /// A field is missing, of the wrong type or out of range.
    InvalidRequest = "INVALID_REQUEST", 400, 4004, Validation;
    /// The template of a create request does not exist.
    UnknownTemplate = "UNKNOWN_TEMPLATE", 400, 4003, Validation;
    /// The user does not exist in the sandbox.
    UnknownUser = "UNKNOWN_USER", 400, 4004, Validation;
    /// The working directory does not exist.
    CwdNotFound = "CWD_NOT_FOUND", 400, 4004, Validation;
    /// The program does not exist or cannot be executed.
    ProgramNotFound = "PROGRAM_NOT_FOUND", 400, 4004, Validation;
    /// The path is not a regular file or a link to one.
    NotAFile = "NOT_A_FILE", 400, 4004, Validation;
    /// The path is not a directory.
    NotADirectory = "NOT_A_DIRECTORY", 400, 4004, Validation;
    /// The route does not accept the body's Content-Type.
    UnsupportedMediaType = "UNSUPPORTED_MEDIA_TYPE", 415, 4004, Validation;
    /// The requested range is outside the file.
    RangeNotSatisfiable = "RANGE_NOT_SATISFIABLE", 416, 4004, Validation;
    /// This server does not serve the requested host name.
    Misdirected = "MISDIRECTED_REQUEST", 421, 4004, Validation;
    /// The route does not support this method.
    MethodNotAllowed = "METHOD_NOT_ALLOWED", 405, 4004, Validation;
    /// The request body is too large.
    TooLarge = "PAYLOAD_TOO_LARGE", 413, 1009, Quota;
    /// The request has no API key.
    MissingApiKey = "MISSING_API_KEY", 401, 4008, Auth;
    /// The API key is unknown, expired or revoked.
    InvalidApiKey = "INVALID_API_KEY", 401, 4008, Auth;
    /// The ticket is unknown, used or expired.
    InvalidTicket = "INVALID_TICKET", 401, 4008, Auth;
    /// The key's scope, the request's origin or the permissions of a file do not allow the operation.
    PermissionDenied = "PERMISSION_DENIED", 403, 4008, Auth;
    /// The route does not exist.
    NotFound = "NOT_FOUND", 404, 4001, NotFound;
    /// The API key does not exist.
    KeyNotFound = "KEY_NOT_FOUND", 404, 4001, NotFound;
    /// The org does not exist.
    OrgNotFound = "ORG_NOT_FOUND", 404, 4001, NotFound;
    /// The session does not exist, or its history was deleted.
    SessionNotFound = "SESSION_NOT_FOUND", 404, 4001, NotFound;
    /// The terminal does not exist.
    TerminalNotFound = "TERMINAL_NOT_FOUND", 404, 4001, NotFound;
    /// The sandbox does not exist or was deleted.
    SandboxNotFound = "SANDBOX_NOT_FOUND", 404, 4001, NotFound;
    /// The file does not exist.
    FileNotFound = "FILE_NOT_FOUND", 404, 4001, NotFound;
    /// The command does not exist.
    ExecNotFound = "EXEC_NOT_FOUND", 404, 4001, NotFound;
    /// The template does not exist.
    TemplateNotFound = "TEMPLATE_NOT_FOUND", 404, 4001, NotFound;
    /// The resource already exists, is in use, or is in a state that does not allow the operation.
    Conflict = "CONFLICT", 409, 4004, Conflict;
    /// The file already exists.
    FileExists = "FILE_EXISTS", 409, 4004, Conflict;
    /// The sandbox is stopped.
    SandboxStopped = "SANDBOX_STOPPED", 409, 4002, Conflict;
    /// The sandbox is paused.
    SandboxPaused = "SANDBOX_PAUSED", 409, 4002, Conflict;
    /// The command's standard input is closed or was never connected.
    StdinClosed = "STDIN_CLOSED", 409, 4004, Conflict;
    /// The idempotency key was used before with a different request.
    IdempotencyMismatch = "IDEMPOTENCY_MISMATCH", 409, 4004, Conflict;
    /// The sandbox could not be created or was lost.
    SandboxFailed = "SANDBOX_FAILED", 410, 4002, NotFound;
    /// The key exceeds its limit of requests per second.
    RateLimited = "RATE_LIMITED", 429, 4005, RateLimit;
    /// A limit of the sandbox or the org is reached.
    QuotaExceeded = "QUOTA_EXCEEDED", 429, 4005, RateLimit;
    /// Internal server error.
    Internal = "INTERNAL", 500, 1011, Internal;
    /// This host lacks a feature that the request needs.
    UnsupportedByHost = "UNSUPPORTED_BY_HOST", 501, 4006, ProviderUnavailable;
    /// No capacity left on this host.
    NoCapacity = "NO_CAPACITY", 503, 4006, ProviderUnavailable;
    /// The server cannot be reached. Reported by clients; no server sends this code.
    ServerUnreachable = "SERVER_UNREACHABLE", 503, 4006, ProviderUnavailable;
    /// A process in the sandbox did not respond in time.
    Timeout = "PROVIDER_TIMEOUT", 504, 4007, ProviderTimeout;
    /// No disk space left.
    DiskFull = "DISK_FULL", 507, 4005, Quota;
}

impl PartialSchema for Code {
    fn schema() -> RefOr<Schema> {
        let sent = Self::ALL
            .iter()
            .filter(|code| **code != Self::ServerUnreachable);
        let names = sent.map(|code| code.name());
        Object::builder()
            .schema_type(Type::String)
            .enum_values(Some(names))
            .description(Some("Code of an error."))
            .into()
    }
}

impl ToSchema for Code {}

impl Code {
    /// Exit code of a CLI command that fails with this error.
    pub fn exit_code(self) -> u8 {
        match self.category() {
            Category::Validation => 2,
            Category::Auth => 3,
            Category::NotFound => 4,
            Category::Conflict => 5,
            Category::Quota | Category::RateLimit => 6,
            Category::ProviderUnavailable => match self {
                // A server answered: it lacks room or a feature.
                Self::NoCapacity | Self::UnsupportedByHost => 6,
                _ => 7,
            },
            Category::ProviderTimeout => 7,
            Category::Internal => 70,
        }
    }

    /// Seconds after which a client may retry. `None`: a retry alone does not help.
    pub fn retry_after(self) -> Option<u32> {
        match self {
            Self::NoCapacity => Some(5),
            // Rate limits are per second.
            Self::QuotaExceeded | Self::RateLimited => Some(1),
            _ => None,
        }
    }
}

/// An error as a client sees it. Its internal cause is logged and never sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct Error {
    /// The error code.
    pub code: Code,
    /// Description of the failure, with the field, path or state concerned.
    pub message: String,
    /// Advice for the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Machine-readable values by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<String, String>,
}

impl Error {
    /// Creates an error with a message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            remedy: None,
            details: BTreeMap::new(),
        }
    }

    /// Creates the error for an invalid field.
    pub fn invalid(field: &str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Code::InvalidRequest, message)
            .remedy(remedy)
            .detail("field", field)
    }

    /// Sets the remedy.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Adds a machine-readable value.
    #[must_use]
    pub fn detail(mut self, name: &str, value: impl Into<String>) -> Self {
        self.details.insert(name.into(), value.into());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

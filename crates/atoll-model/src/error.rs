//! What can go wrong, told to the person who has to act: one table gives every code its meaning on
//! each edge (HTTP status, close code of a WebSocket, exit code).

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{Object, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// The kind of a failure, for deciding what to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// The request is wrong.
    Validation,
    /// The caller may not.
    Auth,
    /// There is no such thing.
    NotFound,
    /// Not in this state.
    Conflict,
    /// It is larger than there is room for.
    Quota,
    /// There are as many as there may be at once, or in a second.
    RateLimit,
    /// This machine cannot do it, now or at all.
    ProviderUnavailable,
    /// Somebody did not answer in time.
    ProviderTimeout,
    /// Our fault.
    Internal,
}

macro_rules! codes {
    ($( $(#[doc = $doc:literal])* $variant:ident = $name:literal, $status:literal, $close:literal, $category:ident; )*) => {
        /// Every failure a caller can be told of.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Code {
            $( $(#[doc = $doc])* #[serde(rename = $name)] $variant, )*
        }
        impl Code {
            /// Every code, in the table's order.
            pub const ALL: &[Self] = &[$( Self::$variant ),*];

            /// The code as it is written in answers.
            pub fn name(self) -> &'static str {
                match self { $( Self::$variant => $name, )* }
            }
            /// Its HTTP status.
            pub fn status(self) -> u16 {
                match self { $( Self::$variant => $status, )* }
            }
            /// The code by which a WebSocket is closed that ends with it.
            pub fn close_code(self) -> u16 {
                match self { $( Self::$variant => $close, )* }
            }
            /// What it means.
            pub fn meaning(self) -> &'static str {
                match self { $( Self::$variant => concat!($( $doc ),*).trim_ascii(), )* }
            }
            /// Its kind.
            pub fn category(self) -> Category {
                match self { $( Self::$variant => Category::$category, )* }
            }
        }
    };
}

codes! {
    /// A field is missing, of the wrong type or out of range.
    InvalidRequest = "INVALID_REQUEST", 400, 4004, Validation;
    /// The template of a create is not known.
    UnknownTemplate = "UNKNOWN_TEMPLATE", 400, 4003, Validation;
    /// The user is not known in the sandbox.
    UnknownUser = "UNKNOWN_USER", 400, 4004, Validation;
    /// The working directory is not there.
    CwdNotFound = "CWD_NOT_FOUND", 400, 4004, Validation;
    /// The program is not there or cannot be run.
    ProgramNotFound = "PROGRAM_NOT_FOUND", 400, 4004, Validation;
    /// Neither a regular file nor a link to one.
    NotAFile = "NOT_A_FILE", 400, 4004, Validation;
    /// Not a directory.
    NotADirectory = "NOT_A_DIRECTORY", 400, 4004, Validation;
    /// The body is not of the kind this route takes.
    UnsupportedMediaType = "UNSUPPORTED_MEDIA_TYPE", 415, 4004, Validation;
    /// The file has no such part.
    RangeNotSatisfiable = "RANGE_NOT_SATISFIABLE", 416, 4004, Validation;
    /// The request is for a host that we do not serve.
    Misdirected = "MISDIRECTED_REQUEST", 421, 4004, Validation;
    /// There is no such method here.
    MethodNotAllowed = "METHOD_NOT_ALLOWED", 405, 4004, Validation;
    /// The request is too large.
    TooLarge = "PAYLOAD_TOO_LARGE", 413, 1009, Quota;
    /// The request has no API key.
    MissingApiKey = "MISSING_API_KEY", 401, 4008, Auth;
    /// The API key is unknown, expired or revoked.
    InvalidApiKey = "INVALID_API_KEY", 401, 4008, Auth;
    /// The ticket is unknown, used or expired.
    InvalidTicket = "INVALID_TICKET", 401, 4008, Auth;
    /// The key's scope, the origin of the page or the permissions of a file refuse it.
    PermissionDenied = "PERMISSION_DENIED", 403, 4008, Auth;
    /// No such route.
    NotFound = "NOT_FOUND", 404, 4001, NotFound;
    /// No such key.
    KeyNotFound = "KEY_NOT_FOUND", 404, 4001, NotFound;
    /// No such org.
    OrgNotFound = "ORG_NOT_FOUND", 404, 4001, NotFound;
    /// No such session in the history.
    SessionNotFound = "SESSION_NOT_FOUND", 404, 4001, NotFound;
    /// No such terminal.
    TerminalNotFound = "TERMINAL_NOT_FOUND", 404, 4001, NotFound;
    /// No such sandbox.
    SandboxNotFound = "SANDBOX_NOT_FOUND", 404, 4001, NotFound;
    /// No such file.
    FileNotFound = "FILE_NOT_FOUND", 404, 4001, NotFound;
    /// No such command.
    ExecNotFound = "EXEC_NOT_FOUND", 404, 4001, NotFound;
    /// No such template.
    TemplateNotFound = "TEMPLATE_NOT_FOUND", 404, 4001, NotFound;
    /// It is already there, or in use.
    Conflict = "CONFLICT", 409, 4004, Conflict;
    /// The file is already there.
    FileExists = "FILE_EXISTS", 409, 4004, Conflict;
    /// The sandbox does not run.
    SandboxStopped = "SANDBOX_STOPPED", 409, 4002, Conflict;
    /// The sandbox is paused.
    SandboxPaused = "SANDBOX_PAUSED", 409, 4002, Conflict;
    /// The command's standard input is closed, or was never open.
    StdinClosed = "STDIN_CLOSED", 409, 4004, Conflict;
    /// The same idempotency key came with another request.
    IdempotencyMismatch = "IDEMPOTENCY_MISMATCH", 409, 4004, Conflict;
    /// The sandbox could not be made or was lost.
    SandboxFailed = "SANDBOX_FAILED", 410, 4002, NotFound;
    /// The key sends more requests than it may.
    RateLimited = "RATE_LIMITED", 429, 4005, RateLimit;
    /// A limit of the sandbox or the org is reached.
    QuotaExceeded = "QUOTA_EXCEEDED", 429, 4005, RateLimit;
    /// Something of ours failed.
    Internal = "INTERNAL", 500, 1011, Internal;
    /// This host lacks what was asked for.
    UnsupportedByHost = "UNSUPPORTED_BY_HOST", 501, 4006, ProviderUnavailable;
    /// The machine cannot take more.
    NoCapacity = "NO_CAPACITY", 503, 4006, ProviderUnavailable;
    /// No server can be reached. Clients report it; no server sends it.
    ServerUnreachable = "SERVER_UNREACHABLE", 503, 4006, ProviderUnavailable;
    /// Somebody inside did not answer in time.
    Timeout = "PROVIDER_TIMEOUT", 504, 4007, ProviderTimeout;
    /// The disk is full.
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
            .description(Some("Every failure a caller can be told of."))
            .into()
    }
}

impl ToSchema for Code {}

impl Code {
    /// The exit code of a command that ends with it.
    pub fn exit_code(self) -> u8 {
        match self.category() {
            Category::Validation => 2,
            Category::Auth => 3,
            Category::NotFound => 4,
            Category::Conflict => 5,
            Category::Quota | Category::RateLimit => 6,
            // Another try may find room.
            Category::ProviderUnavailable if self == Self::NoCapacity => 6,
            Category::ProviderUnavailable | Category::ProviderTimeout => 7,
            Category::Internal => 70,
        }
    }

    /// When to try again, in seconds, for what passes by itself.
    pub fn retry_after(self) -> Option<u32> {
        match self {
            Self::NoCapacity => Some(5),
            // So much comes back each second.
            Self::QuotaExceeded | Self::RateLimited => Some(1),
            _ => None,
        }
    }
}

/// A failure at the edge: what a caller is told. The internal cause is logged, not told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct Error {
    /// Which failure.
    pub code: Code,
    /// What happened, naming the field, path or state.
    pub message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Values a program can use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub details: BTreeMap<String, String>,
}

impl Error {
    /// A failure with its message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            remedy: None,
            details: BTreeMap::new(),
        }
    }

    /// A field that cannot be accepted.
    pub fn invalid(field: &str, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(Code::InvalidRequest, message)
            .remedy(remedy)
            .detail("field", field)
    }

    /// Says what to do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Adds a value a program can use.
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

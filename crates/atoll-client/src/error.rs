//! Errors of requests, and the policy by which failed requests are retried.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_model::{Code, Error};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::{Client, Remedies};

/// Default of the time for which an unreachable server is retried.
pub(crate) const AWAY: Duration = Duration::from_mins(1);
/// Delay before the first retry, and the upper bound of delays.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Key of the request id in an error's details.
pub const REQUEST_ID_DETAIL: &str = "requestID";

/// Why a request has no successful response.
#[derive(Debug)]
pub enum RequestError {
    /// No connection could be made: the request was not sent.
    Unreachable(Error),
    /// The connection broke: the server may have processed the request.
    ConnectionLost(Error),
    /// No data arrived in time: the server may have processed the request.
    Timeout(Error),
    /// The server responded with an error.
    Rejected(Error),
}

impl From<RequestError> for Error {
    fn from(failure: RequestError) -> Self {
        match failure {
            RequestError::Unreachable(error)
            | RequestError::ConnectionLost(error)
            | RequestError::Timeout(error)
            | RequestError::Rejected(error) => error,
        }
    }
}

/// Error response of a server.
#[derive(Debug, Deserialize)]
struct ErrorBody {
    error: String,
    #[serde(default, deserialize_with = "known_code")]
    code: Option<Code>,
    remedy: Option<String>,
    #[serde(default)]
    details: BTreeMap<String, String>,
    request_id: Option<String>,
}

/// `None` for a code that this version of the client does not know.
fn known_code<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Code>, D::Error> {
    Ok(Code::deserialize(Value::deserialize(deserializer)?).ok())
}

/// Parses an error response.
pub(crate) fn refused(status: u16, body: &[u8]) -> RequestError {
    let code = match status {
        401 => Code::InvalidApiKey,
        403 => Code::PermissionDenied,
        404 => Code::NotFound,
        409 => Code::Conflict,
        429 => Code::QuotaExceeded,
        400..500 => Code::InvalidRequest,
        502..=504 => Code::ServerUnreachable,
        _ => Code::Internal,
    };
    let Ok(refusal) = serde_json::from_slice::<ErrorBody>(body) else {
        let message = format!("the answer is {status}, and not one of an Atoll server");
        let error = Error::new(code, message);
        // Sent by a proxy that cannot reach the server.
        if (502..=504).contains(&status) {
            return RequestError::ConnectionLost(error.remedy(crate::connect::UNREACHABLE_REMEDY));
        }
        return RequestError::Rejected(error.remedy(CHECK));
    };
    let mut error = Error::new(refusal.code.unwrap_or(code), refusal.error);
    error.remedy = refusal.remedy;
    error.details = refusal.details;
    if let Some(request) = refusal.request_id {
        if matches!(error.code, Code::Internal) {
            error.message = format!("{} (request {request})", error.message);
        }
        error.details.insert(REQUEST_ID_DETAIL.to_owned(), request);
    }
    RequestError::Rejected(error)
}

const CHECK: &str = "check the URL: /health below it says \"ok\"";

/// Replaces the server's remedy if the program has its own.
pub(crate) fn reword(error: &mut Error, remedies: Remedies) {
    if let Some(remedy) = remedies(error) {
        error.remedy = Some(remedy);
    }
}

/// Decides whether and when a request is retried.
#[derive(Debug)]
pub struct RetryPolicy {
    repeatable: bool,
    heard: bool,
    since: Option<Instant>,
    pause: Duration,
}

impl RetryPolicy {
    /// Creates a policy for a request that is idempotent, or not.
    pub fn new(repeatable: bool) -> Self {
        Self {
            repeatable,
            heard: false,
            since: None,
            pause: PAUSES.0,
        }
    }

    /// Resets the policy after a success.
    pub fn reset(&mut self) {
        (self.heard, self.since, self.pause) = (false, None, PAUSES.0);
    }

    /// Whether the request was sent before.
    pub fn is_retry(&self) -> bool {
        self.since.is_some()
    }

    /// Whether an earlier attempt may have succeeded.
    pub fn may_have_succeeded(&self) -> bool {
        self.heard
    }

    /// Waits before the next attempt, or returns the error if there is no further attempt.
    pub async fn after(&mut self, client: &Client, failure: RequestError) -> Result<(), Error> {
        let worth = match &failure {
            // A server that never accepted a connection is not retried.
            RequestError::Unreachable(_) => client.has_connected(),
            RequestError::ConnectionLost(_) => self.repeatable,
            // A server that has never responded is not retried after a timeout.
            RequestError::Timeout(_) => self.repeatable && client.has_connected(),
            // The request was not processed.
            RequestError::Rejected(error) => error.code == Code::RateLimited,
        };
        self.heard |= matches!(
            failure,
            RequestError::ConnectionLost(_) | RequestError::Timeout(_)
        );
        let since = *self.since.get_or_insert_with(Instant::now);
        if !worth || since.elapsed() >= client.max_outage {
            return Err(failure.into());
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSES.1);
        Ok(())
    }
}

//! How a request fails, and whether it is worth saying again.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_model::{Code, Error};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::{Client, Remedies};

/// How long a server may be away before it is given up, unless the client says otherwise.
pub(crate) const AWAY: Duration = Duration::from_mins(1);
/// The first pause, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// By what name a refusal's details have the id of its request.
pub const REQUEST_ID_DETAIL: &str = "requestID";

/// Why there is no answer, or not the one that was wanted.
#[derive(Debug)]
pub enum RequestError {
    /// Nobody was reached: nothing was asked.
    Unreachable(Error),
    /// The line broke: it may have been heard or not.
    ConnectionLost(Error),
    /// Nothing is said for too long: it may have been heard or not.
    Timeout(Error),
    /// The server says no.
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

/// What a server says when it says no.
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

/// `None` for a code of another version of the server.
fn known_code<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Code>, D::Error> {
    Ok(Code::deserialize(Value::deserialize(deserializer)?).ok())
}

/// A refusal, from its status and its body.
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
        // Somebody in between, whose server is away.
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

/// Replaces the server's remedy, if the program has its own.
pub(crate) fn reword(error: &mut Error, remedies: Remedies) {
    if let Some(remedy) = remedies(error) {
        error.remedy = Some(remedy);
    }
}

/// How often something is said again.
#[derive(Debug)]
pub struct RetryPolicy {
    repeatable: bool,
    heard: bool,
    since: Option<Instant>,
    pause: Duration,
}

impl RetryPolicy {
    /// For what can be said again although it may have been heard, or cannot.
    pub fn new(repeatable: bool) -> Self {
        Self {
            repeatable,
            heard: false,
            since: None,
            pause: PAUSES.0,
        }
    }

    /// Something worked: the next trouble is another one.
    pub fn reset(&mut self) {
        (self.heard, self.since, self.pause) = (false, None, PAUSES.0);
    }

    /// It was said before.
    pub fn is_retry(&self) -> bool {
        self.since.is_some()
    }

    /// It was said before, and may have been done.
    pub fn may_have_succeeded(&self) -> bool {
        self.heard
    }

    /// Waits a moment before the next try, or gives up.
    pub async fn after(&mut self, client: &Client, failure: RequestError) -> Result<(), Error> {
        let worth = match &failure {
            // A server that was never there is not waited for.
            RequestError::Unreachable(_) => client.has_connected(),
            RequestError::ConnectionLost(_) => self.repeatable,
            // Whoever never said a word will not now.
            RequestError::Timeout(_) => self.repeatable && client.has_connected(),
            // Nothing was done.
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

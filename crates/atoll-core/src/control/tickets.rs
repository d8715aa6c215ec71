//! Tickets: one-time credentials in the query of a URL, for browsers, which cannot set headers on WebSockets and
//! downloads.
//!
//! URLs end up in histories and logs, so a ticket is valid once and for 30 seconds. Tickets are kept in memory only, as
//! hashes: they do not survive a restart of the server.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use atoll_model::{Code, Error, OrgId, RequestId, Scope, lock};
use sha2::{Digest as _, Sha256};

use crate::control::keys::{hex, is_secret_hex, random_secret_hex};
use crate::{Core, RequestContext};

const PREFIX: &str = "tkt_";
/// Validity of a ticket.
const TTL: Duration = Duration::from_secs(30);
/// Maximum number of unused tickets per org.
const MAX_PENDING_PER_ORG: usize = 1_000;

/// Unused tickets.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    /// Expiry and context by the hash of the ticket.
    pending: Mutex<HashMap<String, (Instant, RequestContext)>>,
}

impl Tickets {
    fn pending(&self) -> MutexGuard<'_, HashMap<String, (Instant, RequestContext)>> {
        lock(&self.pending)
    }

    fn redeem(&self, ticket: &str) -> Option<RequestContext> {
        let (until, context) = self.pending().remove(&hash(ticket))?;
        (until > Instant::now()).then_some(context)
    }

    /// Removes all tickets of an org after a key was revoked that may have created some of them.
    pub(crate) fn invalidate_org(&self, org: &OrgId) {
        self.pending()
            .retain(|_, (_, context)| context.org.id != *org);
    }
}

/// A new ticket with its secret, which is returned only once.
#[derive(Debug, Clone)]
pub struct CreatedTicket {
    /// The ticket.
    pub secret: String,
    /// Expiry in microseconds since 1970.
    pub expires_at: i64,
}

/// Whether a text has the form of a ticket.
pub fn is_ticket(text: &str) -> bool {
    text.strip_prefix(PREFIX).is_some_and(is_secret_hex)
}

fn hash(ticket: &str) -> String {
    hex(&Sha256::digest(ticket.as_bytes()))
}

impl Core {
    /// Creates a ticket with the permissions of the caller.
    pub fn create_ticket(&self, context: &RequestContext) -> Result<CreatedTicket, Error> {
        context.require(Scope::Read)?;
        let mut pending = self.inner.tickets.pending();
        let begin = Instant::now();
        // Expired tickets are removed here and not in `redeem`, which needs no key and must take constant time.
        pending.retain(|_, (until, _)| *until > begin);
        let ours = pending.values();
        let ours = ours.filter(|(_, known)| known.org.id == context.org.id);
        if ours.count() >= MAX_PENDING_PER_ORG {
            let message = format!("{MAX_PENDING_PER_ORG} tickets of your org wait to be used");
            return Err(Error::new(Code::QuotaExceeded, message).remedy("use them, or wait"));
        }
        let secret = format!("{PREFIX}{}", random_secret_hex());
        let expires_at = self.inner.clock.system() + TTL.as_micros() as i64;
        pending.insert(hash(&secret), (begin + TTL, context.clone()));
        Ok(CreatedTicket { secret, expires_at })
    }

    /// Consumes a ticket and returns the context of its creator.
    pub fn redeem(&self, ticket: &str, request: RequestId) -> Result<RequestContext, Error> {
        let context = self.inner.tickets.redeem(ticket).ok_or_else(|| {
            Error::new(
                Code::InvalidTicket,
                "the ticket is unknown, used or older than 30 s",
            )
            .remedy("create another with POST /tickets")
        })?;
        Ok(RequestContext { request, ..context })
    }
}

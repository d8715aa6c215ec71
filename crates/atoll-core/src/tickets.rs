//! Tickets: what a browser shows where it can send no headers, behind the question mark of a WebSocket or a download.
//! Such addresses end up in histories and logs, so a ticket is good once and for a moment. They are kept in memory
//! only, as hashes: a server that starts anew verify none.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use atoll_model::{Code, Error, OrgId, RequestId, Scope};
use sha2::{Digest as _, Sha256};

use crate::keys::{hex, is_secret_hex, random_secret_hex};
use crate::{Core, RequestContext};

const PREFIX: &str = "tkt_";
/// How long one is good.
const TTL: Duration = Duration::from_secs(30);
/// How many of an org may wait to be used.
const MAX_PENDING_PER_ORG: usize = 1_000;

/// Tickets that nobody has shown yet.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    /// By the ticket's hash: until when it is good, and for whom.
    pending: Mutex<HashMap<String, (Instant, RequestContext)>>,
}

impl Tickets {
    fn pending(&self) -> MutexGuard<'_, HashMap<String, (Instant, RequestContext)>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn redeem(&self, ticket: &str) -> Option<RequestContext> {
        let (until, context) = self.pending().remove(&hash(ticket))?;
        (until > Instant::now()).then_some(context)
    }

    /// A key of this org is worth nothing any more; it may have made some of these.
    pub(crate) fn invalidate_org(&self, org: &OrgId) {
        self.pending()
            .retain(|_, (_, context)| context.org.id != *org);
    }
}

/// A ticket, which is told this once.
#[derive(Debug, Clone)]
pub struct CreatedTicket {
    /// What is shown.
    pub secret: String,
    /// Until when: microseconds since 1970.
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
    /// Makes a ticket that may do what the caller may, once.
    pub fn create_ticket(&self, context: &RequestContext) -> Result<CreatedTicket, Error> {
        context.require(Scope::Read)?;
        let mut pending = self.inner.tickets.pending();
        let begin = Instant::now();
        // Here and not when a ticket is redeemed: that needs no key and must cost the same however many are open.
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

    /// Who shows this ticket. From here on it is worth nothing.
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

//! Tickets: what a browser shows where it can send no headers, behind the question mark of a WebSocket or a download.
//! Such addresses end up in histories and logs, so a ticket is good once and for a moment. They are kept in memory
//! only, as hashes: a server that starts anew knows none.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use atoll_model::{Code, Error, OrgId, RequestId, Scope};
use sha2::{Digest as _, Sha256};

use crate::keys::{hex, is_digits, random_digits};
use crate::{Context, Core};

const PREFIX: &str = "tkt_";
/// How long one is good.
const GOOD: Duration = Duration::from_secs(30);
/// How many of an org may wait to be used.
const MOST: usize = 1_000;

/// Tickets that nobody has shown yet.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    /// By the ticket's hash: until when it is good, and for whom.
    open: Mutex<HashMap<String, (Instant, Context)>>,
}

impl Tickets {
    fn open(&self) -> MutexGuard<'_, HashMap<String, (Instant, Context)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn redeem(&self, ticket: &str) -> Option<Context> {
        let (until, context) = self.open().remove(&hash(ticket))?;
        (until > Instant::now()).then_some(context)
    }

    /// A key of this org is worth nothing any more; it may have made some of these.
    pub(crate) fn forget(&self, org: &OrgId) {
        self.open().retain(|_, (_, context)| context.org.id != *org);
    }
}

/// A ticket, which is told this once.
#[derive(Debug, Clone)]
pub struct MadeTicket {
    /// What is shown.
    pub secret: String,
    /// Until when: microseconds since 1970.
    pub expires_at: i64,
}

/// Whether a text has the form of a ticket.
pub fn is_ticket(text: &str) -> bool {
    text.strip_prefix(PREFIX).is_some_and(is_digits)
}

fn hash(ticket: &str) -> String {
    hex(&Sha256::digest(ticket.as_bytes()))
}

impl Core {
    /// Makes a ticket that may do what the caller may, once.
    pub fn make_ticket(&self, context: &Context) -> Result<MadeTicket, Error> {
        context.require(Scope::Read)?;
        let mut open = self.inner.tickets.open();
        let begin = Instant::now();
        // Here and not when a ticket is redeemed: that needs no key and must cost the same however many are open.
        open.retain(|_, (until, _)| *until > begin);
        let ours = open.values();
        let ours = ours.filter(|(_, known)| known.org.id == context.org.id);
        if ours.count() >= MOST {
            let message = format!("{MOST} tickets of your org wait to be used");
            return Err(Error::new(Code::QuotaExceeded, message).remedy("use them, or wait"));
        }
        let secret = format!("{PREFIX}{}", random_digits());
        let expires_at = self.inner.clock.system() + GOOD.as_micros() as i64;
        open.insert(hash(&secret), (begin + GOOD, context.clone()));
        Ok(MadeTicket { secret, expires_at })
    }

    /// Who shows this ticket. From here on it is worth nothing.
    pub fn redeem(&self, ticket: &str, request: RequestId) -> Result<Context, Error> {
        let context = self.inner.tickets.redeem(ticket).ok_or_else(|| {
            Error::new(
                Code::InvalidTicket,
                "the ticket is unknown, used or older than 30 s",
            )
            .remedy("create another with POST /tickets")
        })?;
        Ok(Context { request, ..context })
    }
}

//! As much of a DNS message as has to be understood: the question, and the addresses in an answer.
//! Every byte comes from a stranger, a sandbox or a name server.

use std::net::Ipv4Addr;

use atoll_model::{EgressException, is_closed};

const HEADER: usize = 12;
const A: u16 = 1;
const AAAA: u16 = 28;

/// What an answer says went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// Nothing.
    NoError = 0,
    /// The question cannot be read.
    FormErr = 1,
    /// Nobody can be question_end.
    ServFail = 2,
    /// That kind of question is not answered.
    NotImp = 4,
}

/// A query that can be passed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Query<'a> {
    bytes: &'a [u8],
    /// Where its question ends.
    end: usize,
    kind: u16,
}

impl<'a> Query<'a> {
    /// Reads a query. What is not one at all gets no answer; what we do not want gets one.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, Option<Vec<u8>>> {
        let Some(header) = bytes.first_chunk::<HEADER>() else {
            return Err(None);
        };
        if header[2] & 0x80 != 0 {
            // Two servers that answer answers would never end.
            return Err(None);
        }
        if header[2] & 0x78 != 0 {
            return Err(Some(reply(header, Status::NotImp)));
        }
        let end = skip_name(bytes, HEADER).and_then(|end| Some((end, read_u16(bytes, end)?)));
        match end {
            Some((end, kind)) if header[4..6] == [0, 1] && bytes.len() >= end + 4 => Ok(Self {
                bytes,
                end: end + 4,
                kind,
            }),
            _ => Err(Some(reply(header, Status::FormErr))),
        }
    }

    /// The query as it came.
    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether it asks for IPv6 addresses, which no sandbox can use.
    pub(super) fn wants_ipv6(&self) -> bool {
        self.kind == AAAA
    }

    /// An answer without any record.
    pub(super) fn empty(&self, status: Status) -> Vec<u8> {
        reply(&self.bytes[..self.end], status)
    }

    /// What to make of an answer of a name server, if sandboxes reach these refused addresses.
    pub(super) fn check_answer(
        &self,
        answer: &[u8],
        exceptions: &[EgressException],
    ) -> AnswerCheck {
        let Some(header) = answer.first_chunk::<HEADER>() else {
            return AnswerCheck::Foreign;
        };
        let same_id = header[..2] == self.bytes[..2] && header[2] & 0x80 != 0;
        // Some servers answer what they cannot do without repeating the question.
        let question_end = match header[4..6] {
            [0, 0] => HEADER,
            _ => self.end,
        };
        let same = answer.get(HEADER..question_end).is_some_and(|question| {
            question.eq_ignore_ascii_case(&self.bytes[HEADER..question_end])
        });
        if !same_id || !same {
            return AnswerCheck::Foreign;
        }
        let count = |at: usize| usize::from(u16::from_be_bytes([header[at], header[at + 1]]));
        let count = count(6) + count(8) + count(10);
        match has_blocked_address(answer, question_end, count, exceptions) {
            Some(false) => AnswerCheck::Allowed,
            Some(true) => AnswerCheck::BlockedAddress,
            // Cut in the middle of a record is how some servers say that there is more.
            None if header[2] & 0x02 != 0 => AnswerCheck::Truncated,
            None => AnswerCheck::Malformed,
        }
    }
}

/// What an answer is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerCheck {
    /// It may be passed on.
    Allowed,
    /// It has an address that is refused to sandboxes.
    BlockedAddress,
    /// It is not whole, and says so.
    Truncated,
    /// It cannot be read.
    Malformed,
    /// It does not answer this query.
    Foreign,
}

/// An answer that repeats the question, if there is one after the header, and says nothing else.
fn reply(query: &[u8], status: Status) -> Vec<u8> {
    let mut answer = query.to_vec();
    // An answer; the operation and "recursion desired" as they were.
    answer[2] = 0x80 | query[2] & 0x79;
    // Recursion is available.
    answer[3] = 0x80 | status as u8;
    answer[4..HEADER].fill(0);
    answer[5] = u8::from(query.len() > HEADER);
    answer
}

/// The same with "there is more": whoever question_end comes again over TCP.
pub(super) fn truncated(query: &Query<'_>) -> Vec<u8> {
    let mut answer = query.empty(Status::NoError);
    answer[2] |= 0x02;
    answer
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_be_bytes([pair[0], pair[1]]))
}

/// Where a name ends. Where a pointer leads is of no interest.
fn skip_name(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *bytes.get(at)? {
            0 => return Some(at + 1),
            length @ 1..=63 => at += 1 + usize::from(length),
            0xc0.. => return (at + 2 <= bytes.len()).then_some(at + 2),
            _ => return None,
        }
    }
}

/// Whether one of so many records has an address that is refused; nothing if they cannot be read.
fn has_blocked_address(
    bytes: &[u8],
    mut at: usize,
    count: usize,
    exceptions: &[EgressException],
) -> Option<bool> {
    let mut blocked = false;
    for _ in 0..count {
        let fixed = skip_name(bytes, at)?;
        let kind = read_u16(bytes, fixed)?;
        let length = usize::from(read_u16(bytes, fixed + 8)?);
        let data = bytes.get(fixed + 10..fixed + 10 + length)?;
        blocked |= match (kind, data) {
            (A, &[a, b, c, d]) => is_closed(Ipv4Addr::new(a, b, c, d), exceptions),
            // Everything but global unicast.
            (AAAA, &[first, ..]) => first & 0xe0 != 0x20,
            (A | AAAA, _) => return None,
            _ => false,
        };
        at = fixed + 10 + length;
    }
    Some(blocked)
}

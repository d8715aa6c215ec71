//! A minimal DNS parser: the question of a query, and the addresses in an answer. All input is
//! untrusted.

use std::net::Ipv4Addr;

use atoll_model::{EgressException, is_blocked_except};

const HEADER: usize = 12;
const A: u16 = 1;
const AAAA: u16 = 28;

/// Response code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    /// No error.
    NoError = 0,
    /// The query is malformed.
    FormErr = 1,
    /// No name server answered.
    ServFail = 2,
    /// The operation is not supported.
    NotImp = 4,
}

/// A query that can be forwarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Query<'a> {
    bytes: &'a [u8],
    /// End of its question section.
    end: usize,
    kind: u16,
}

impl<'a> Query<'a> {
    /// Parses a query. `Err(None)` for messages that get no answer, otherwise the error response.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, Option<Vec<u8>>> {
        let Some(header) = bytes.first_chunk::<HEADER>() else {
            return Err(None);
        };
        if header[2] & 0x80 != 0 {
            // Never answer a response: two servers would loop.
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

    /// The query's bytes.
    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether it is an AAAA query; sandboxes have no IPv6.
    pub(super) fn wants_ipv6(&self) -> bool {
        self.kind == AAAA
    }

    /// A response without records.
    pub(super) fn empty(&self, status: Status) -> Vec<u8> {
        reply(&self.bytes[..self.end], status)
    }

    /// Checks a name server's response. `exceptions` are blocked addresses that are allowed.
    pub(super) fn check_answer(
        &self,
        answer: &[u8],
        exceptions: &[EgressException],
    ) -> AnswerCheck {
        let Some(header) = answer.first_chunk::<HEADER>() else {
            return AnswerCheck::Foreign;
        };
        let same_id = header[..2] == self.bytes[..2] && header[2] & 0x80 != 0;
        // Some servers omit the question in errors.
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
            // Some servers truncate in the middle of a record.
            None if header[2] & 0x02 != 0 => AnswerCheck::Truncated,
            None => AnswerCheck::Malformed,
        }
    }
}

/// Result of checking a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerCheck {
    /// It can be forwarded.
    Allowed,
    /// It contains a blocked address.
    BlockedAddress,
    /// It is truncated and has the TC bit.
    Truncated,
    /// It cannot be parsed.
    Malformed,
    /// It answers another query.
    Foreign,
}

/// A response with the query's question, if present, and no records.
fn reply(query: &[u8], status: Status) -> Vec<u8> {
    let mut answer = query.to_vec();
    // QR is set; opcode and RD are copied.
    answer[2] = 0x80 | query[2] & 0x79;
    // RA is set.
    answer[3] = 0x80 | status as u8;
    answer[4..HEADER].fill(0);
    answer[5] = u8::from(query.len() > HEADER);
    answer
}

/// An empty response with TC, so that the client retries over TCP.
pub(super) fn truncated_response(query: &Query<'_>) -> Vec<u8> {
    let mut answer = query.empty(Status::NoError);
    answer[2] |= 0x02;
    answer
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_be_bytes([pair[0], pair[1]]))
}

/// Offset after a name; compression pointers are not followed.
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

/// Whether one of `count` records has a blocked address; `None` if they cannot be parsed.
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
            (A, &[a, b, c, d]) => is_blocked_except(Ipv4Addr::new(a, b, c, d), exceptions),
            // Everything but global unicast (2000::/3).
            (AAAA, &[first, ..]) => first & 0xe0 != 0x20,
            (A | AAAA, _) => return None,
            _ => false,
        };
        at = fixed + 10 + length;
    }
    Some(blocked)
}

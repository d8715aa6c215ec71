//! Strict framing of HTTP/1 messages (RFC 9112). A message that two parsers may read differently
//! gets 400: bare line feeds, `Content-Length` together with `Transfer-Encoding`, either of them
//! repeated, codings other than `chunked`, a missing or repeated `Host`. hyper accepts these and
//! hides some of them from routes.
//!
//! [`Framing`] scans the bytes of a connection: heads and trailers by line, bodies by length or
//! chunks. It truncates the stream at a violation. In a head it appends bytes that no head may
//! contain: hyper responds with 400, after the responses to earlier requests, and closes. In a body
//! the read fails. No byte after a violation reaches hyper.

use std::io;

use tokio::io::ReadBuf;

/// Maximum size of a head or trailer section.
pub(super) const MAX_HEAD_BYTES: usize = u16::MAX as usize;
/// Maximum length of a chunk size line.
const MAX_CHUNK_LINE_BYTES: usize = 4 << 10;
/// A head that ends with these bytes is invalid, whatever comes before.
const INVALID: &[u8] = b"\0\r\n\r\n";

/// Part of the stream that the next byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Head,
    /// Bytes left of a body with a length.
    Body(u64),
    ChunkSize,
    /// Bytes left of a chunk.
    Chunk(u64),
    /// Line end after a chunk.
    ChunkEnd,
    Trailers,
}

/// A violation and its offset in the scanned bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Violation {
    at: usize,
    in_head: bool,
    reason: &'static str,
}

/// The framing fields of one head.
#[derive(Debug, Default)]
struct Head {
    /// Set by the request line; `true` for HTTP/1.1.
    version_11: Option<bool>,
    host: bool,
    length: Option<u64>,
    chunked: bool,
}

/// State of the scanner between two reads.
#[derive(Debug)]
pub(super) struct Framing {
    part: Part,
    head: Head,
    /// The current line so far.
    line: Vec<u8>,
    /// Size of the current head, trailer section or chunk size line so far.
    size: usize,
    end: End,
}

/// Whether more bytes are forwarded.
#[derive(Debug, Clone, Copy)]
enum End {
    Open,
    /// Forward these bytes, then end of stream.
    Closing(&'static [u8]),
    Failed(&'static str),
}

impl Framing {
    pub(super) fn new() -> Self {
        Self {
            part: Part::Head,
            head: Head::default(),
            line: Vec::new(),
            size: 0,
            end: End::Open,
        }
    }

    /// After a violation, supplies the replacement for the rest of the stream; `None` before.
    pub(super) fn poll_ended(&mut self, buffer: &mut ReadBuf<'_>) -> Option<io::Result<()>> {
        match self.end {
            End::Open => None,
            End::Closing(rest) => {
                let (some, rest) = rest.split_at(rest.len().min(buffer.remaining()));
                buffer.put_slice(some);
                self.end = End::Closing(rest);
                Some(Ok(()))
            }
            End::Failed(reason) => Some(Err(io::Error::new(io::ErrorKind::InvalidData, reason))),
        }
    }

    /// Scans the bytes after the first `before` of a buffer, and truncates it at a violation.
    pub(super) fn check(&mut self, buffer: &mut ReadBuf<'_>, before: usize) -> io::Result<()> {
        let Err(violation) = self.scan(buffer.filled().get(before..).unwrap_or_default()) else {
            return Ok(());
        };
        tracing::debug!(reason = violation.reason, "malformed request rejected");
        buffer.set_filled(before + violation.at);
        self.line = Vec::new();
        self.end = if violation.in_head {
            End::Closing(INVALID)
        } else {
            End::Failed(violation.reason)
        };
        // An empty read would mean end of stream.
        match self.poll_ended(buffer) {
            Some(Err(_)) if violation.at > 0 => Ok(()),
            ended => ended.unwrap_or(Ok(())),
        }
    }

    fn scan(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let (left, next) = match self.part {
                Part::Body(left) => (left, Part::Head),
                Part::Chunk(left) => (left, Part::ChunkEnd),
                Part::Head | Part::ChunkSize | Part::ChunkEnd | Part::Trailers => {
                    let line_feed = rest.iter().position(|byte| *byte == b'\n');
                    let taken = line_feed.map_or(rest.len(), |line_feed| line_feed + 1);
                    let part = self.part;
                    let violation = |reason| Violation {
                        at: at + taken - 1,
                        in_head: part == Part::Head,
                        reason,
                    };
                    self.line
                        .extend_from_slice(rest.get(..taken).unwrap_or_default());
                    self.size += taken;
                    if self.size > self.max_bytes() {
                        if part == Part::Head {
                            // hyper has received more than its limit and responds with 431.
                            self.end = End::Closing(&[]);
                            return Ok(());
                        }
                        return Err(violation("a line of a chunked body is too long"));
                    }
                    if line_feed.is_some() {
                        self.end_line().map_err(violation)?;
                    }
                    at += taken;
                    continue;
                }
            };
            let taken = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
            at += taken;
            self.part = match (self.part, left - taken as u64) {
                (_, 0) => next,
                (Part::Body(_), left) => Part::Body(left),
                (_, left) => Part::Chunk(left),
            };
        }
        Ok(())
    }

    /// Maximum size of the current part.
    fn max_bytes(&self) -> usize {
        match self.part {
            Part::ChunkSize => MAX_CHUNK_LINE_BYTES,
            Part::ChunkEnd => 2,
            _ => MAX_HEAD_BYTES,
        }
    }

    /// Processes the line that has just ended.
    fn end_line(&mut self) -> Result<(), &'static str> {
        let mut line = std::mem::take(&mut self.line);
        let text = line.strip_suffix(b"\r\n").ok_or("a bare line feed")?;
        if text.contains(&b'\r') {
            return Err("a bare carriage return");
        }
        let next = match self.part {
            Part::ChunkSize => match chunk_size(text)? {
                0 => Part::Trailers,
                size => Part::Chunk(size),
            },
            Part::ChunkEnd if text.is_empty() => Part::ChunkSize,
            Part::ChunkEnd => return Err("a chunk is longer than its size"),
            Part::Trailers if text.is_empty() => Part::Head,
            Part::Trailers => {
                field(text)?;
                Part::Trailers
            }
            Part::Head if !text.is_empty() => {
                self.head.line(text)?;
                Part::Head
            }
            // Empty lines before a request line are allowed.
            Part::Head if self.head.version_11.is_none() => Part::Head,
            Part::Head | Part::Body(_) | Part::Chunk(_) => {
                let next = std::mem::take(&mut self.head).body()?;
                self.part = next;
                self.size = 0;
                // Idle connections keep no buffer.
                return Ok(());
            }
        };
        if next != self.part {
            (self.part, self.size) = (next, 0);
        }
        line.clear();
        self.line = line;
        Ok(())
    }
}

impl Head {
    fn line(&mut self, text: &[u8]) -> Result<(), &'static str> {
        let Some(version_11) = self.version_11 else {
            self.version_11 = Some(match text.rsplit(|byte| *byte == b' ').next() {
                Some(b"HTTP/1.1") => true,
                Some(b"HTTP/1.0") => false,
                _ => return Err("a request line without a version"),
            });
            return Ok(());
        };
        let (name, value) = field(text)?;
        if name.eq_ignore_ascii_case(b"host") {
            if std::mem::replace(&mut self.host, true) {
                return Err("repeated Host");
            }
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let length = digits(value, 10).ok_or("Content-Length is not a number")?;
            if self.length.replace(length).is_some() {
                return Err("repeated Content-Length");
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if !version_11 {
                return Err("Transfer-Encoding in HTTP/1.0");
            }
            if !value.eq_ignore_ascii_case(b"chunked") {
                return Err("Transfer-Encoding is not chunked");
            }
            if std::mem::replace(&mut self.chunked, true) {
                return Err("repeated Transfer-Encoding");
            }
        }
        Ok(())
    }

    /// The part that follows the head.
    fn body(self) -> Result<Part, &'static str> {
        if self.version_11 == Some(true) && !self.host {
            return Err("Host is missing");
        }
        match (self.length, self.chunked) {
            (Some(_), true) => Err("both Content-Length and Transfer-Encoding"),
            (None, true) => Ok(Part::ChunkSize),
            (None | Some(0), false) => Ok(Part::Head),
            (Some(length), false) => Ok(Part::Body(length)),
        }
    }
}

/// Name and value of a header or trailer field.
fn field(text: &[u8]) -> Result<(&[u8], &[u8]), &'static str> {
    let colon = text.iter().position(|byte| *byte == b':');
    let (name, value) = colon
        .and_then(|colon| Some((text.get(..colon)?, text.get(colon + 1..)?)))
        .ok_or("a field without a colon")?;
    if name.is_empty() || !name.iter().copied().all(is_token) {
        return Err("a field name is not a token");
    }
    Ok((name, trim(value)))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Trims optional whitespace.
fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Size of a chunk, from its line; extensions are ignored.
fn chunk_size(line: &[u8]) -> Result<u64, &'static str> {
    let mut parts = line.splitn(2, |byte| *byte == b';');
    let size = parts.next().and_then(|size| digits(size, 16));
    let control = |byte: &u8| byte.is_ascii_control() && *byte != b'\t';
    if parts.next().is_some_and(|rest| rest.iter().any(control)) {
        return Err("a control character in a chunk extension");
    }
    size.ok_or("the size of a chunk is not a number")
}

/// Parses an unsigned number without sign or whitespace.
fn digits(text: &[u8], radix: u32) -> Option<u64> {
    let text = str::from_utf8(text).ok()?;
    let all = !text.is_empty() && text.chars().all(|digit| digit.is_digit(radix));
    all.then(|| u64::from_str_radix(text, radix).ok())?
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests;

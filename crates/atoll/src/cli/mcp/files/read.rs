//! Reads lines of text, or a picture. Stops reading when the output limit is reached.

use std::io::{self, Write};

use atoll_model::{Code, Error};
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;

use crate::cli::cp::download;
use crate::cli::mcp::output::{LONGEST, ToolOutput, whole};
use crate::cli::mcp::tools::{Sandbox, Tool, ToolContext, ToolEffect, ToolInfo};

/// Maximum size of a picture.
const PICTURE: usize = 3 << 20;
/// Magic numbers of picture formats.
const PICTURES: &[(&[u8], &str)] = &[
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
];

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::cli::mcp) struct ReadFile {
    /// Path of the file; relative paths start at the user's home.
    path: String,
    /// First line to read, counted from 1.
    #[schemars(range(min = 1))]
    start_line: Option<u64>,
    /// Last line to read.
    #[schemars(range(min = 1))]
    end_line: Option<u64>,
}

impl Tool for ReadFile {
    const ABOUT: ToolInfo = ToolInfo {
        name: "read_file",
        title: "Read a file",
        description: "Read a text file, all of it or some of its lines, at most 30,000 bytes at a time. A PNG, JPEG or GIF is shown.",
        nature: ToolEffect::Reads,
        sandbox: Sandbox::Usual,
    };

    async fn call_tool(self, place: ToolContext<'_>) -> Result<ToolOutput, Error> {
        let (first, last) = (self.start_line.unwrap_or(1), self.end_line);
        if first == 0 || last.is_some_and(|last| last < first) {
            let message = "start_line counts from 1, and end_line is not before it";
            return Err(Error::invalid(
                "start_line",
                message,
                "name lines that there can be",
            ));
        }
        let mut taken = Taken::new(first, last.unwrap_or(u64::MAX));
        let path = place.call(&[], &self.path);
        download::file(place.client, &path, &mut taken, &mut |_| {}).await?;
        taken.into_output(&self.path)
    }
}

/// Collects the requested lines from a stream, and reports when it has enough.
#[derive(Debug)]
struct Taken {
    first: u64,
    last: u64,
    /// Number of the current line.
    line: u64,
    /// Whether part of the current line was received.
    open: bool,
    bytes: Vec<u8>,
    kind: Kind,
    /// Whether the file has more than was collected.
    more: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Whether nothing was received yet.
    Empty,
    Text,
    Picture(&'static str),
    Other,
}

impl Taken {
    fn new(first: u64, last: u64) -> Self {
        Self {
            first,
            last,
            line: 1,
            open: false,
            bytes: Vec::new(),
            kind: Kind::Empty,
            more: false,
        }
    }

    fn enough(&mut self) -> io::Error {
        self.more = true;
        io::ErrorKind::BrokenPipe.into()
    }

    /// Collects as much as fits into the limit.
    fn take(&mut self, bytes: &[u8], most: usize) -> io::Result<()> {
        let room = most.saturating_sub(self.bytes.len());
        let fits = bytes.get(..room.min(bytes.len()));
        self.bytes.extend_from_slice(fits.unwrap_or_default());
        if bytes.len() > room {
            return Err(self.enough());
        }
        Ok(())
    }

    fn into_output(mut self, path: &str) -> Result<ToolOutput, Error> {
        match self.kind {
            Kind::Picture(kind) if !self.more => {
                let size = self.bytes.len();
                let text = format!("{path}: {kind}, {size} bytes");
                return Ok(ToolOutput::new(text).picture(&self.bytes, kind));
            }
            Kind::Picture(_) | Kind::Other => {
                let message = format!("{path:?} is not text, or too large for a picture");
                return Err(Error::new(Code::InvalidRequest, message)
                    .remedy("look at it with run_command: `file`, `xxd`, `base64`"));
            }
            Kind::Empty | Kind::Text => {}
        }
        // A truncated line is left to the next call, unless it is the only line.
        let lines = self.bytes.iter().rposition(|byte| *byte == b'\n');
        let cut = self.bytes.len() >= LONGEST && self.more;
        let torn = cut && lines.is_none();
        if cut && let Some(end) = lines {
            self.bytes.truncate(end + 1);
        }
        let text = String::from_utf8_lossy(whole(&self.bytes)).into_owned();
        let count = text.split_inclusive('\n').count() as u64;
        if count == 0 && self.first > 1 {
            let message = format!(
                "{path:?} has {} lines",
                self.line - 1 + u64::from(self.open)
            );
            return Err(Error::invalid(
                "start_line",
                message,
                "name a line that there is",
            ));
        }
        let end = self.first + count.max(1) - 1;
        let note = match (torn, self.more) {
            (true, _) => {
                format!("\n[line {end} goes on, and there may be more: `cut -c` shows parts of it]")
            }
            (false, true) => format!("\n[there is more: go on with start_line {}]", end + 1),
            (false, false) => String::new(),
        };
        let text = if text.is_empty() { "[empty]" } else { &text };
        Ok(ToolOutput::new(format!("{text}{note}")))
    }
}

impl Write for Taken {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.kind == Kind::Empty && !bytes.is_empty() {
            let begins = |(magic, _): &&(&[u8], _)| bytes.starts_with(magic);
            let known = PICTURES.iter().find(begins);
            self.kind = known.map_or(Kind::Text, |(_, kind)| Kind::Picture(kind));
        }
        if matches!(self.kind, Kind::Picture(_)) {
            self.take(bytes, PICTURE)?;
            return Ok(bytes.len());
        }
        if bytes.contains(&0) {
            self.kind = Kind::Other;
            return Err(self.enough());
        }
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.line > self.last {
                return Err(self.enough());
            }
            if self.line >= self.first {
                self.take(part, LONGEST)?;
            }
            self.open = !part.ends_with(b"\n");
            self.line += u64::from(!self.open);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

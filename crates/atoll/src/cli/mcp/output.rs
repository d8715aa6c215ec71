//! Answers for agents: text, and a picture if there is one. It is never longer than a host can take.
//!
//! A result has no structured content: hosts differ in which of the two they give to the model, and some give both. An error has
//! both, and they say the same.

use std::collections::VecDeque;

use atoll_client::REQUEST_ID_DETAIL;
use atoll_model::Error;
use base64::Engine as _;
use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::json;

/// The longest text that is told of one thing, in bytes.
pub(super) const LONGEST: usize = 30_000;

/// An answer.
#[derive(Debug)]
pub(super) struct ToolOutput {
    text: String,
    picture: Option<ContentBlock>,
}

impl ToolOutput {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            picture: None,
        }
    }

    /// With a picture that the host may show.
    pub(super) fn picture(mut self, bytes: &[u8], kind: &str) -> Self {
        let text = base64::engine::general_purpose::STANDARD.encode(bytes);
        self.picture = Some(ContentBlock::image(text, kind));
        self
    }
}

impl From<ToolOutput> for CallToolResult {
    fn from(told: ToolOutput) -> Self {
        let text = ContentBlock::text(told.text);
        Self::success([text].into_iter().chain(told.picture).collect())
    }
}

/// A failure that the agent can do something about; its data has the form that the API gives to failures.
pub(super) fn failed(error: &Error) -> CallToolResult {
    let mut text = format!("{}: {}", error.code.name(), error.message);
    let mut details = error.details.clone();
    let request = details.remove(REQUEST_ID_DETAIL);
    let mut data = json!({
        "error": error.message,
        "code": error.code.name(),
        "category": error.code.category(),
    });
    if let Some(remedy) = &error.remedy {
        text = format!("{text}\nhint: {remedy}");
        data["remedy"] = json!(remedy);
    }
    if !details.is_empty() {
        data["details"] = json!(details);
    }
    if let Some(request) = request {
        text = format!("{text}\nrequest: {request}");
        data["request_id"] = json!(request);
    }
    let mut result = CallToolResult::error(vec![ContentBlock::text(text)]);
    result.structured_content = Some(data);
    result
}

/// A list as lines, no longer than one thing may be.
#[derive(Debug, Default)]
pub(super) struct ListOutput {
    lines: Vec<String>,
    length: usize,
    /// There is more.
    truncated: bool,
}

impl ListOutput {
    /// An empty one, of something of which there is more, or not.
    pub(super) fn new(truncated: bool) -> Self {
        Self {
            truncated,
            ..Self::default()
        }
    }

    pub(super) fn push(&mut self, line: String) {
        self.length += line.len();
        if self.length > LONGEST {
            self.truncated = true;
            return;
        }
        self.lines.push(line);
    }

    /// All of it; a line of its own if there is nothing, and one more if there is more.
    pub(super) fn told(mut self, none: &str, more: &str) -> ToolOutput {
        if self.lines.is_empty() {
            self.lines.push(none.into());
        }
        if self.truncated {
            self.lines.push(more.into());
        }
        ToolOutput::new(self.lines.join("\n"))
    }
}

/// The beginning and the end of something long.
#[derive(Debug, Default)]
pub(super) struct HeadAndTail {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    /// How long all of it is.
    pub(super) total: u64,
}

impl HeadAndTail {
    const HALF: usize = LONGEST / 2;

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let room = (Self::HALF - self.head.len()).min(bytes.len());
        let (head, rest) = bytes.split_at(room);
        self.head.extend_from_slice(head);
        let rest = rest.get(rest.len().saturating_sub(Self::HALF)..);
        self.tail.extend(rest.unwrap_or_default());
        let over = self.tail.len().saturating_sub(Self::HALF);
        self.tail.drain(..over);
    }

    /// How much of it is not here.
    pub(super) fn left_out(&self) -> u64 {
        self.total - (self.head.len() + self.tail.len()) as u64
    }

    pub(super) fn text(&self) -> String {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        match self.left_out() {
            0 => String::from_utf8_lossy(&[self.head.as_slice(), &tail].concat()).into_owned(),
            left_out => {
                let head = String::from_utf8_lossy(whole(&self.head));
                let middle = tail.iter().take_while(|byte| **byte & 0xc0 == 0x80);
                let tail = tail.get(middle.count()..).unwrap_or_default();
                let tail = String::from_utf8_lossy(tail);
                format!("{head}\n[{left_out} bytes left out]\n{tail}")
            }
        }
    }
}

/// Without a letter that is cut off at the end.
pub(super) fn whole(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => {
            bytes.get(..error.valid_up_to()).unwrap_or_default()
        }
        _ => bytes,
    }
}

/// A line for people, not longer than they like.
pub(super) fn short(line: &str) -> String {
    const MOST: usize = 300;
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_something_long_both_ends_are_told_and_how_much_is_between() {
        let mut ends = HeadAndTail::default();
        ends.push(b"short");
        assert_eq!((ends.text().as_str(), ends.left_out()), ("short", 0));
        let whole: Vec<u8> = (0..100_000_u32).map(|n| b'a' + (n % 26) as u8).collect();
        for part in [1, 7, 4096, 100_000] {
            let mut ends = HeadAndTail::default();
            whole.chunks(part).for_each(|chunk| ends.push(chunk));
            assert_eq!(ends.left_out(), 70_000, "in parts of {part}");
            let text = ends.text();
            let (head, tail) = (&whole[..15_000], &whole[85_000..]);
            let (head, tail) = (str::from_utf8(head), str::from_utf8(tail));
            let wanted = format!(
                "{}\n[70000 bytes left out]\n{}",
                head.unwrap_or_default(),
                tail.unwrap_or_default()
            );
            assert_eq!(text, wanted, "in parts of {part}");
        }
    }

    #[test]
    fn letters_are_not_torn() {
        let mut ends = HeadAndTail::default();
        ends.push("ü".repeat(50_000).as_bytes());
        ends.push(b"!");
        assert!(!ends.text().contains('\u{fffd}'));
    }
}

//! Results of tool calls: text, and optionally a picture, within the size limits of hosts.
//!
//! Successful results have no structured content: hosts differ in whether they pass text,
//! structured content or both to the model. Errors have both, with the same information.

use std::collections::VecDeque;

use atoll_client::REQUEST_ID_DETAIL;
use atoll_model::Error;
use base64::Engine as _;
use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::json;

/// Maximum length of one text, in bytes.
pub(super) const LONGEST: usize = 30_000;

/// Result of a tool call.
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

    /// Adds a picture that the host may show.
    pub(super) fn picture(mut self, bytes: &[u8], kind: &str) -> Self {
        let text = base64::engine::general_purpose::STANDARD.encode(bytes);
        self.picture = Some(ContentBlock::image(text, kind));
        self
    }
}

impl From<ToolOutput> for CallToolResult {
    fn from(output: ToolOutput) -> Self {
        let text = ContentBlock::text(output.text);
        Self::success([text].into_iter().chain(output.picture).collect())
    }
}

/// An error that the agent can handle, with the fields of the API's error format.
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

/// A list as lines, limited to the length of one text.
#[derive(Debug, Default)]
pub(super) struct ListOutput {
    lines: Vec<String>,
    length: usize,
    /// Whether the list is incomplete.
    truncated: bool,
}

impl ListOutput {
    /// Creates an empty list; `more` says that the source has more entries.
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

    /// Returns the text, with a line that says if the list is empty or incomplete.
    pub(super) fn into_output(mut self, none: &str, more: &str) -> ToolOutput {
        if self.lines.is_empty() {
            self.lines.push(none.into());
        }
        if self.truncated {
            self.lines.push(more.into());
        }
        ToolOutput::new(self.lines.join("\n"))
    }
}

/// Beginning and end of a long text.
#[derive(Debug, Default)]
pub(super) struct HeadAndTail {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    /// Length of the whole text.
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

    /// Number of bytes that were left out.
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

/// Removes an incomplete UTF-8 sequence at the end.
pub(super) fn whole(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => {
            bytes.get(..error.valid_up_to()).unwrap_or_default()
        }
        _ => bytes,
    }
}

/// Truncates a text to a readable line.
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
    fn long_output_keeps_both_ends_and_counts_the_rest() {
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
    fn truncation_keeps_characters_whole() {
        let mut ends = HeadAndTail::default();
        ends.push("ü".repeat(50_000).as_bytes());
        ends.push(b"!");
        assert!(!ends.text().contains('\u{fffd}'));
    }
}

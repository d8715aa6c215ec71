//! Edits: replaces an exact text by another. The file is read and written as bytes, so that parts
//! that are not UTF-8 do not change.
//!
//! The API has no conditional write. Edits of one session are serialized, and an edit is rejected
//! if the file's metadata changed between the read and the write. A change in the short time
//! between that check and the write is overwritten.

use std::io::{self, Write};

use atoll_client::Request;
use atoll_model::{Code, Error};
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use serde_json::Value;

use crate::cli::cp::download;
use crate::cli::mcp::output::ToolOutput;
use crate::cli::mcp::tools::{Sandbox, Tool, ToolContext, ToolEffect, ToolInfo};

/// Maximum size of a file to edit.
const MOST: usize = 16 << 20;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::cli::mcp) struct EditFile {
    /// Path of the file; relative paths start at the user's home.
    path: String,
    /// Exact text to replace, with enough context to occur only once.
    old_text: String,
    /// Replacement; empty removes the text.
    new_text: String,
    /// Replace all occurrences.
    #[serde(default)]
    replace_all: bool,
}

impl Tool for EditFile {
    const ABOUT: ToolInfo = ToolInfo {
        name: "edit_file",
        title: "Edit a file",
        description: "Replace an exact text in a file by another. It must be there once, unless `replace_all` is true.",
        nature: ToolEffect::Changes,
        sandbox: Sandbox::Usual,
    };

    async fn call_tool(self, place: ToolContext<'_>) -> Result<ToolOutput, Error> {
        if self.old_text.is_empty() || self.old_text == self.new_text {
            let message = "old_text is empty, or the same as new_text";
            let remedy = "give the text that is there and another; write_file makes new files";
            return Err(Error::invalid("old_text", message, remedy));
        }
        let _alone = place.session.edits.lock().await;
        let look = Request::get(place.call(&["stat"], &self.path));
        let before = place.client.send_json(&look).await?;
        let mut file = Whole(Vec::new());
        let bytes = place.call(&[], &self.path);
        let read = download::file(place.client, &bytes, &mut file, &mut |_| {}).await;
        if file.0.len() > MOST {
            let message = format!("{:?} is larger than {} MiB", self.path, MOST >> 20);
            return Err(Error::new(Code::TooLarge, message).remedy("edit it with run_command"));
        }
        read?;
        let (edited, lines) = self.replaced(&file.0)?;
        let same = |name: &str, now: &Value| now[name] == before[name];
        let now = place.client.send_json(&look).await?;
        if !same("modifiedAt", &now) || !same("size", &now) {
            let message = format!(
                "{:?} was changed meanwhile, and is left as it is",
                self.path
            );
            return Err(Error::new(Code::Conflict, message).remedy("read it again"));
        }
        place.put(&self.path, edited).await?;
        let shown: Vec<String> = lines.iter().take(20).map(ToString::to_string).collect();
        let text = match lines.len() {
            1 => format!("edited {} at line {}", self.path, shown.join("")),
            count => format!(
                "edited {} in {count} places, at lines {}",
                self.path,
                shown.join(", ")
            ),
        };
        Ok(ToolOutput::new(text))
    }
}

impl EditFile {
    /// Returns the new contents, and the lines of the replacements.
    fn replaced(&self, file: &[u8]) -> Result<(Vec<u8>, Vec<u64>), Error> {
        let (old, new) = (self.old_text.as_bytes(), self.new_text.as_bytes());
        let (mut edited, mut lines) = (Vec::with_capacity(file.len()), Vec::new());
        let (mut rest, mut line) = (file, 1_u64);
        while let Some(at) = find(rest, old) {
            let (before, after) = rest.split_at(at);
            line += newlines(before);
            lines.push(line);
            line += newlines(old);
            edited.extend_from_slice(before);
            edited.extend_from_slice(new);
            rest = after.get(old.len()..).unwrap_or_default();
        }
        edited.extend_from_slice(rest);
        let wrong = |message: String, remedy: &str| {
            Err(Error::new(Code::InvalidRequest, message)
                .remedy(remedy)
                .detail("field", "old_text"))
        };
        match lines.as_slice() {
            [] => wrong(
                format!("old_text is not in {:?}", self.path),
                "read the file, and copy what is there to the letter, with its blanks",
            ),
            [_] => Ok((edited, lines)),
            _ if self.replace_all => Ok((edited, lines)),
            [first, second, ..] => wrong(
                format!(
                    "old_text is in {:?} {} times, first at lines {first} and {second}",
                    self.path,
                    lines.len()
                ),
                "give more of what is around it, or say replace_all",
            ),
        }
    }
}

fn newlines(bytes: &[u8]) -> u64 {
    bytes.split(|byte| *byte == b'\n').skip(1).count() as u64
}

/// Position of the first occurrence.
fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

/// Reads a whole file, unless it is too large.
struct Whole(Vec<u8>);

impl Write for Whole {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        if self.0.len() > MOST {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(file: &str, old: &str, replace_all: bool, wanted: Result<(&str, &[u64]), &str>) {
        let edit = EditFile {
            path: "f".into(),
            old_text: old.into(),
            new_text: "X".into(),
            replace_all,
        };
        let got = edit.replaced(file.as_bytes());
        match (got, wanted) {
            (Ok((bytes, lines)), Ok((text, at))) => {
                assert_eq!((bytes.as_slice(), lines.as_slice()), (text.as_bytes(), at));
            }
            (Err(error), Err(part)) => assert!(error.message.contains(part), "{error}"),
            (got, wanted) => panic!("{got:?} and not {wanted:?}"),
        }
    }

    #[test]
    fn edit_replaces_one_or_all_occurrences() {
        check("a\nb\nc", "b\n", false, Ok(("a\nXc", &[2])));
        check(
            "a\nb\nb",
            "b",
            false,
            Err("2 times, first at lines 2 and 3"),
        );
        check("a\nb\nb", "b", true, Ok(("a\nX\nX", &[2, 3])));
        check("aaa", "aa", true, Ok(("Xa", &[1])));
        check("abc", "d", true, Err("is not in"));
        check("", "d", false, Err("is not in"));
    }
}

//! Scrollback: the newest rows as cells, older ones as text.

use std::collections::VecDeque;

use super::row::Row;

/// Bytes of scrollback in a replay.
pub(super) const MAX_REPLAY_BYTES: usize = 200_000;

#[derive(Debug, Default)]
pub(super) struct Scrollback {
    /// Newest last; as many as a screen can grow, because they come back when it does.
    rows: VecDeque<Row>,
    /// Older lines, each ending with CR LF. Trimmed at twice the size that a replay needs.
    text: String,
}

impl Scrollback {
    /// Pushes a row and returns a row whose memory can be reused.
    pub(super) fn push(&mut self, row: Row, max: usize) -> Row {
        self.rows.push_back(row);
        if self.rows.len() <= max {
            return Row::default();
        }
        let old = self.rows.pop_front().unwrap_or_default();
        write_line(&old, &mut self.text);
        if self.text.len() > 2 * MAX_REPLAY_BYTES {
            self.text.drain(..tail_start(&self.text, MAX_REPLAY_BYTES));
        }
        old
    }

    /// The newest row.
    pub(super) fn pop(&mut self) -> Option<Row> {
        self.rows.pop_back()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Rewraps rows that are wider than `columns`; `old` is the previous width.
    pub(super) fn narrow(&mut self, old: usize, columns: usize, max: usize) {
        let mut rows = std::mem::take(&mut self.rows);
        for mut row in rows.drain(..) {
            row.fill_to(old);
            row.trim();
            while let Some(rest) = row.split(columns) {
                row.shrink(columns);
                self.push(row, max);
                row = rest;
            }
            self.push(row, max);
        }
    }

    /// Prepares rows of this width for a wider screen.
    pub(super) fn widen(&mut self, columns: usize) {
        for row in &mut self.rows {
            row.fill_to(columns);
        }
    }

    /// The text and the rows that together fit into a replay.
    pub(super) fn tail(&self) -> (&str, impl Iterator<Item = &Row>) {
        let (mut left, mut skip, mut line) = (MAX_REPLAY_BYTES, self.rows.len(), String::new());
        while let Some(row) = skip.checked_sub(1).and_then(|next| self.rows.get(next)) {
            line.clear();
            write_line(row, &mut line);
            let Some(less) = left.checked_sub(line.len()) else {
                left = 0;
                break;
            };
            (left, skip) = (less, skip - 1);
        }
        let text = &self.text[tail_start(&self.text, left)..];
        (text, self.rows.iter().skip(skip))
    }
}

fn write_line(row: &Row, out: &mut String) {
    row.write_text(out);
    if !row.wrapped {
        out.push_str("\r\n");
    }
}

/// Offset at which the last whole lines of at most `max` bytes begin.
fn tail_start(text: &str, max: usize) -> usize {
    if text.len() <= max {
        return 0;
    }
    let start = text.ceil_char_boundary(text.len() - max);
    // A single longer line is cut.
    text[start..]
        .find('\n')
        .map_or(start, |newline| start + newline + 1)
}

//! What has left the screen at its top: the newest rows as they were, what is older as text.

use std::collections::VecDeque;

use super::row::Row;

/// The max text that is given to who attaches.
pub(super) const MAX_REPLAY_BYTES: usize = 200_000;

#[derive(Debug, Default)]
pub(super) struct Scrollback {
    /// Newest last. As many as a screen can grow: rows come back when it does.
    rows: VecDeque<Row>,
    /// Older lines, each ended as a terminal needs it. Cut when it is twice as long as it need be.
    text: String,
}

impl Scrollback {
    /// Takes a row, and gives one whose memory can be used again.
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

    /// Rows wider than `columns`, of the `old` ones, become several.
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

    /// The screen becomes wider than this.
    pub(super) fn widen(&mut self, columns: usize) {
        for row in &mut self.rows {
            row.fill_to(columns);
        }
    }

    /// The older text and the newer rows that together are within the limit.
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

/// Where the last whole lines of at max so many bytes begin.
fn tail_start(text: &str, max: usize) -> usize {
    if text.len() <= max {
        return 0;
    }
    let start = text.ceil_char_boundary(text.len() - max);
    // A line longer than all that is kept begins somewhere in it.
    text[start..]
        .find('\n')
        .map_or(start, |newline| start + newline + 1)
}

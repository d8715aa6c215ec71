//! Printing of characters: wrapping, insertion, character sets.

use super::cell::{Cell, Width};
use super::terminal::{Charset, Terminal};

/// DEC special graphics for `_` to `~`.
const DEC_SPECIAL_GRAPHICS: [char; 32] = [
    '\u{a0}', '◆', '▒', '␉', '␌', '␍', '␊', '°', '±', '␤', '␋', '┘', '┐', '┌', '└', '┼', '⎺', '⎻',
    '─', '⎼', '⎽', '├', '┤', '┴', '┬', '│', '≤', '≥', 'π', '≠', '£', '·',
];

impl Terminal {
    /// Wraps to the next row if the last column was written.
    pub(super) fn wrap_if_pending(&mut self) {
        if self.cursor.pending && self.modes.wrap {
            self.row().wrapped = true;
            self.line_feed();
            self.move_to_column(0);
        }
    }

    pub(super) fn advance(&mut self, by: usize) {
        let (column, last) = (self.cursor.column + by, self.size.columns - 1);
        self.cursor.column = column.min(last);
        self.cursor.pending = column > last && self.modes.wrap;
    }

    /// Writes a character of width 1 or 2.
    pub(super) fn print_char(&mut self, character: char, width: usize) {
        let columns = self.size.columns;
        if width > columns {
            return;
        }
        self.wrap_if_pending();
        let style = self.cursor.style;
        if self.cursor.column + width > columns {
            if !self.modes.wrap {
                return;
            }
            let column = self.cursor.column;
            self.row().erase(column, columns, columns, style);
            self.cursor.pending = true;
            self.wrap_if_pending();
        }
        let (row, column) = (self.cursor.row, self.cursor.column);
        let insert = self.modes.insert;
        let kind = if width == 2 {
            Width::Wide
        } else {
            Width::Narrow
        };
        let line = self.row();
        if insert {
            line.insert(column, width, columns, style);
        }
        line.put(column, Cell::new(character, kind, style));
        self.advance(width);
        self.last = Some((character, row, column));
    }

    /// Adds a combining mark to the character before the cursor.
    pub(super) fn add_mark(&mut self, mark: char) {
        self.last = None;
        let (column, pending) = (self.cursor.column, self.cursor.pending);
        if let Some(column) = if pending {
            Some(column)
        } else {
            column.checked_sub(1)
        } {
            self.row().add_mark(column, mark);
        }
    }
}

/// Translates a byte by a character set.
pub(super) fn translate(charset: Charset, byte: u8) -> char {
    match (charset, byte) {
        (Charset::Drawing, b'_'..=b'~') => DEC_SPECIAL_GRAPHICS[usize::from(byte - b'_')],
        (Charset::British, b'#') => '£',
        _ => char::from(byte),
    }
}

//! Effects of control characters and escape sequences.

use unicode_width::UnicodeWidthChar;

use super::parse::{Perform, Sequence};
use super::print::translate;
use super::terminal::{Charset, PASSIVE, Terminal};

/// Bytes of a title that are kept.
const MAX_TITLE_BYTES: usize = 1024;

impl Perform for Terminal {
    fn print_ascii(&mut self, mut text: &[u8]) {
        let charset = self.cursor.charsets.get(self.cursor.shift);
        let charset = charset.copied().unwrap_or_default();
        if charset != Charset::Ascii || self.modes.insert || !self.modes.wrap {
            for byte in text {
                self.print_char(translate(charset, *byte), 1);
            }
            return;
        }
        while !text.is_empty() {
            self.wrap_if_pending();
            let (row, column, style) = (self.cursor.row, self.cursor.column, self.cursor.style);
            let (now, later) = text.split_at(text.len().min(self.size.columns - column));
            self.row().put_ascii(column, now, style);
            self.advance(now.len());
            let end = column + now.len() - 1;
            self.last = now.last().map(|byte| (char::from(*byte), row, end));
            text = later;
        }
    }

    fn print(&mut self, character: char) {
        match character.width() {
            Some(0) => self.add_mark(character),
            Some(width) => self.print_char(character, width.min(2)),
            None => {}
        }
    }

    fn execute(&mut self, byte: u8) {
        self.last = None;
        match byte {
            0x08 => {
                let column = self.cursor.column;
                self.move_to_column(column.saturating_sub(1));
            }
            0x09 => self.tab(1),
            0x0a..=0x0c => {
                self.line_feed();
                if self.modes.newline {
                    self.move_to_column(0);
                }
                self.cursor.pending = false;
            }
            0x0d => self.move_to_column(0),
            0x0e => self.cursor.shift = 1,
            0x0f => self.cursor.shift = 0,
            _ => {}
        }
    }

    fn esc_dispatch(&mut self, intermediate: Option<u8>, last: u8) {
        self.last = None;
        match (intermediate, last) {
            (None, b'7') => self.save_cursor(),
            (None, b'8') => self.restore_cursor(),
            (None, b'=') => self.set_passive_mode(66, true),
            (None, b'>') => self.set_passive_mode(66, false),
            (None, b'D') => {
                self.line_feed();
                self.cursor.pending = false;
            }
            (None, b'E') => {
                self.line_feed();
                self.move_to_column(0);
            }
            (None, b'H') => {
                let column = self.cursor.column;
                self.tabs[column] = true;
            }
            (None, b'M') => {
                self.reverse_line_feed();
                self.cursor.pending = false;
            }
            (None, b'c') => *self = Self::new(self.size),
            (None, b'n') => self.cursor.shift = 2,
            (None, b'o') => self.cursor.shift = 3,
            (Some(set @ b'('..=b'+'), last) => {
                self.cursor.charsets[usize::from(set - b'(')] = match last {
                    b'0' => Charset::Drawing,
                    b'A' => Charset::British,
                    _ => Charset::Ascii,
                };
            }
            _ => {}
        }
    }

    fn csi_dispatch(&mut self, sequence: &Sequence, last: u8) {
        let written = self.last.take();
        match (sequence.private, sequence.intermediate, last) {
            (None, None, _) => self.csi(sequence, last, written),
            (Some(b'?'), None, b'h') => self.set_private_modes(sequence, true),
            (Some(b'?'), None, b'l') => self.set_private_modes(sequence, false),
            (Some(b'?'), None, b'J' | b'K') => self.csi(sequence, last, None),
            (Some(b'>'), None, b'm') if sequence.param(0) == 4 => {
                self.modes.other_keys = sequence.param(1).min(3);
            }
            (None, Some(b' '), b'q') if sequence.param(0) <= 6 => {
                self.modes.cursor_shape = sequence.param(0);
            }
            (None, Some(b'!'), b'p') => self.soft_reset(),
            _ => {}
        }
    }

    fn osc_dispatch(&mut self, text: &[u8]) {
        if let [b'0' | b'2', b';', title @ ..] = text {
            title[..title.len().min(MAX_TITLE_BYTES)].clone_into(&mut self.title);
        }
    }
}

impl Terminal {
    fn set_passive_mode(&mut self, mode: u16, set: bool) {
        if let Some(index) = PASSIVE.iter().position(|(number, _)| *number == mode) {
            self.modes.passive[index] = set;
        }
    }

    fn tab(&mut self, count: usize) {
        let mut column = self.cursor.column;
        for _ in 0..count.min(self.size.columns) {
            column += 1;
            while column < self.size.columns && !self.tabs[column] {
                column += 1;
            }
        }
        self.move_to_column(column);
    }

    fn tab_back(&mut self, count: usize) {
        let mut column = self.cursor.column;
        for _ in 0..count.min(self.size.columns) {
            column = column.saturating_sub(1);
            while column > 0 && !self.tabs[column] {
                column -= 1;
            }
        }
        self.move_to_column(column);
    }

    fn csi(&mut self, sequence: &Sequence, last: u8, written: Option<(char, usize, usize)>) {
        let count = sequence.count(0);
        let (row, column) = (self.cursor.row, self.cursor.column);
        let (columns, style) = (self.size.columns, self.cursor.style);
        let (top, bottom) = (self.buffer().top, self.buffer().bottom);
        let within = (top..=bottom).contains(&row);
        match last {
            b'A' => self.move_rows(count, 0),
            b'B' | b'e' => self.move_rows(0, count),
            b'C' | b'a' => self.move_to_column(column + count),
            b'D' => self.move_to_column(column.saturating_sub(count)),
            b'E' | b'F' => {
                let (up, down) = if last == b'F' { (count, 0) } else { (0, count) };
                self.move_rows(up, down);
                self.move_to_column(0);
            }
            b'G' | b'`' => self.move_to_column(count - 1),
            b'H' | b'f' => self.move_to(count - 1, sequence.count(1) - 1),
            b'I' => self.tab(count),
            b'Z' => self.tab_back(count),
            b'd' => self.move_to(count - 1, column),
            b'J' => self.erase_display(sequence.param(0)),
            b'K' => {
                let (from, to) = match sequence.param(0) {
                    0 => (column, columns),
                    1 => (0, column + 1),
                    2 => (0, columns),
                    _ => return,
                };
                self.row().erase(from, to, columns, style);
            }
            b'L' if within => {
                self.scroll_down(row, count);
                self.move_to_column(0);
            }
            b'M' if within => {
                self.delete_lines(row, count);
                self.move_to_column(0);
            }
            b'@' => self.row().insert(column, count, columns, style),
            b'P' => self.row().delete(column, count, columns, style),
            b'X' => self.row().erase(column, column + count, columns, style),
            b'S' => self.scroll_up(top, count),
            b'T' => self.scroll_down(top, count),
            b'b' => {
                // At most one row, to bound the cost.
                let count = count.min(columns);
                match written {
                    Some((character, ..)) if character.is_ascii() && character != '\0' => {
                        // The character was already translated: bypass the character set.
                        let shift = std::mem::replace(&mut self.cursor.shift, usize::MAX);
                        self.print_ascii(&vec![character as u8; count]);
                        self.cursor.shift = shift;
                    }
                    Some((character, ..)) => {
                        let width = character.width().unwrap_or(1).clamp(1, 2);
                        for _ in 0..count {
                            self.print_char(character, width);
                        }
                    }
                    None => {}
                }
                return;
            }
            b'g' => match sequence.param(0) {
                0 => self.tabs[column] = false,
                3 => self.tabs.fill(false),
                _ => {}
            },
            b'h' | b'l' => {
                for mode in sequence.groups() {
                    match mode {
                        [4] => self.modes.insert = last == b'h',
                        [20] => self.modes.newline = last == b'h',
                        _ => {}
                    }
                }
                return;
            }
            b'm' => return self.set_style(sequence),
            b'r' => {
                let bottom = match sequence.param(1) {
                    0 => self.size.rows,
                    bottom => usize::from(bottom),
                };
                return self.set_region(count - 1, bottom - 1);
            }
            b's' => return self.save_cursor(),
            b'u' => return self.restore_cursor(),
            _ => return,
        }
        self.cursor.pending = false;
    }

    /// DL: deletes rows of the region from the cursor's on. They do not become scrollback.
    fn delete_lines(&mut self, row: usize, count: usize) {
        let style = self.cursor.style;
        let buffer = self.buffer_mut();
        let bottom = buffer.bottom;
        let region = &mut buffer.rows.make_contiguous()[row..=bottom];
        let count = count.min(region.len());
        region.rotate_left(count);
        let height = region.len();
        for row in &mut region[height - count..] {
            row.clear(style);
        }
    }

    fn erase_display(&mut self, part: u16) {
        let (row, column) = (self.cursor.row, self.cursor.column);
        let (columns, style) = (self.size.columns, self.cursor.style);
        let rows = &mut self.buffer_mut().rows;
        let range = match part {
            0 => {
                rows[row].erase(column, columns, columns, style);
                row + 1..rows.len()
            }
            1 => {
                rows[row].erase(0, column + 1, columns, style);
                0..row
            }
            2 => 0..rows.len(),
            3 => return self.scrollback.clear(),
            _ => return,
        };
        for row in rows.range_mut(range) {
            row.clear(style);
        }
    }

    fn set_private_modes(&mut self, sequence: &Sequence, set: bool) {
        for group in sequence.groups() {
            let &[mode] = group else { continue };
            match mode {
                6 => {
                    self.cursor.origin = set;
                    self.move_to(0, 0);
                }
                7 => self.modes.wrap = set,
                9 | 1000 | 1002 | 1003 => self.modes.mouse = if set { mode } else { 0 },
                1005 | 1006 | 1015 | 1016 => {
                    if set {
                        self.modes.mouse_form = mode;
                    } else if self.modes.mouse_form == mode {
                        self.modes.mouse_form = 0;
                    }
                }
                47 | 1047 if set => self.enter_alternate(),
                47 | 1047 => self.leave_alternate(),
                1048 if set => self.save_cursor(),
                1048 => self.restore_cursor(),
                1049 if set => {
                    if self.alternate.is_none() {
                        self.save_cursor();
                    }
                    self.enter_alternate();
                    self.erase_display(2);
                }
                1049 => {
                    self.leave_alternate();
                    self.restore_cursor();
                }
                _ => self.set_passive_mode(mode, set),
            }
        }
    }
}

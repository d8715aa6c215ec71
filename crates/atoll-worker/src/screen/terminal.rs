//! State of the terminal, and the operations on it. Where terminals differ it follows xterm and
//! xterm.js.

use std::collections::VecDeque;

use super::Size;
use super::cell::Style;
use super::row::Row;
use super::scrollback::Scrollback;

/// Character set of the graphic characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Charset {
    #[default]
    Ascii,
    British,
    /// DEC special graphics: line drawing.
    Drawing,
}

/// Cursor position and attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Cursor {
    pub(super) row: usize,
    pub(super) column: usize,
    /// The last column was written; the next character wraps.
    pub(super) pending: bool,
    pub(super) style: Style,
    pub(super) charsets: [Charset; 4],
    /// Index of the active character set.
    pub(super) shift: usize,
    /// Origin mode: rows are relative to the region, and the cursor stays in it.
    pub(super) origin: bool,
}

/// The main or the alternate screen.
#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) rows: VecDeque<Row>,
    /// First and last row of the scroll region.
    pub(super) top: usize,
    pub(super) bottom: usize,
    pub(super) saved: Cursor,
}

impl Buffer {
    pub(super) fn new(rows: usize) -> Self {
        Self {
            rows: std::iter::repeat_with(Row::default).take(rows).collect(),
            top: 0,
            bottom: rows - 1,
            saved: Cursor::default(),
        }
    }
}

/// Modes without effect here that a client must share: number, and default.
pub(super) const PASSIVE: [(u16, bool); 14] = [
    (1, false),
    (5, false),
    (12, false),
    (25, true),
    (66, false),
    (67, false),
    (1004, false),
    (1007, false),
    (1034, false),
    (1036, false),
    (2004, false),
    (2026, false),
    (2031, false),
    (2048, false),
];

/// Terminal modes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Modes {
    /// In the order of [`PASSIVE`].
    pub(super) passive: [bool; PASSIVE.len()],
    /// Autowrap.
    pub(super) wrap: bool,
    /// Insert mode.
    pub(super) insert: bool,
    /// Line feed implies carriage return.
    pub(super) newline: bool,
    /// Mouse tracking mode; 0 is off.
    pub(super) mouse: u16,
    /// Mouse encoding; 0 is the default.
    pub(super) mouse_form: u16,
    pub(super) cursor_shape: u16,
    /// xterm's `modifyOtherKeys`.
    pub(super) other_keys: u16,
}

impl Default for Modes {
    fn default() -> Self {
        Self {
            passive: PASSIVE.map(|(_, set)| set),
            wrap: true,
            insert: false,
            newline: false,
            mouse: 0,
            mouse_form: 0,
            cursor_shape: 0,
            other_keys: 0,
        }
    }
}

#[derive(Debug)]
pub(super) struct Terminal {
    pub(super) size: Size,
    pub(super) main: Buffer,
    /// The alternate screen, while it is active.
    pub(super) alternate: Option<Buffer>,
    pub(super) cursor: Cursor,
    pub(super) modes: Modes,
    pub(super) tabs: Vec<bool>,
    pub(super) title: Vec<u8>,
    /// The character just written, with its row and column, for REP.
    pub(super) last: Option<(char, usize, usize)>,
    pub(super) scrollback: Scrollback,
}

impl Terminal {
    pub(super) fn new(size: Size) -> Self {
        Self {
            size,
            main: Buffer::new(size.rows),
            alternate: None,
            cursor: Cursor::default(),
            modes: Modes::default(),
            tabs: (0..size.columns).map(is_default_tab_stop).collect(),
            title: Vec::new(),
            last: None,
            scrollback: Scrollback::default(),
        }
    }

    pub(super) fn buffer(&self) -> &Buffer {
        self.alternate.as_ref().unwrap_or(&self.main)
    }

    pub(super) fn buffer_mut(&mut self) -> &mut Buffer {
        self.alternate.as_mut().unwrap_or(&mut self.main)
    }

    /// The cursor's row.
    pub(super) fn row(&mut self) -> &mut Row {
        let row = self.cursor.row;
        &mut self.buffer_mut().rows[row]
    }

    /// Scrolls the region up; rows that leave the screen's top become scrollback.
    pub(super) fn scroll_up(&mut self, top: usize, count: usize) {
        let (last, style) = (self.size.rows - 1, self.cursor.style);
        let saving = self.alternate.is_none() && top == 0;
        let Self {
            alternate,
            main,
            scrollback,
            ..
        } = self;
        let buffer = alternate.as_mut().unwrap_or(main);
        let bottom = buffer.bottom;
        let count = count.min(bottom + 1 - top);
        if top == 0 && bottom == last {
            for _ in 0..count {
                let mut row = buffer.rows.pop_front().unwrap_or_default();
                if saving {
                    row = scrollback.push(row, Size::MAX.rows);
                }
                row.clear(style);
                buffer.rows.push_back(row);
            }
            return;
        }
        let region = &mut buffer.rows.make_contiguous()[top..=bottom];
        region.rotate_left(count);
        let height = region.len();
        for row in &mut region[height - count..] {
            if saving {
                *row = scrollback.push(std::mem::take(row), Size::MAX.rows);
            }
            row.clear(style);
        }
    }

    /// Scrolls the region down.
    pub(super) fn scroll_down(&mut self, top: usize, count: usize) {
        let style = self.cursor.style;
        let buffer = self.buffer_mut();
        let bottom = buffer.bottom;
        let count = count.min(bottom + 1 - top);
        let region = &mut buffer.rows.make_contiguous()[top..=bottom];
        region.rotate_right(count);
        for row in &mut region[..count] {
            row.clear(style);
        }
    }

    /// Moves down one row; scrolls at the end of the region.
    pub(super) fn line_feed(&mut self) {
        let (top, bottom) = (self.buffer().top, self.buffer().bottom);
        if self.cursor.row == bottom {
            self.scroll_up(top, 1);
        } else {
            self.cursor.row = (self.cursor.row + 1).min(self.size.rows - 1);
        }
    }

    /// Moves up one row; scrolls at the top of the region.
    pub(super) fn reverse_line_feed(&mut self) {
        let top = self.buffer().top;
        if self.cursor.row == top {
            self.scroll_down(top, 1);
        } else {
            self.cursor.row = self.cursor.row.saturating_sub(1);
        }
    }

    /// Moves to a row and column, counted from 0.
    pub(super) fn move_to(&mut self, row: usize, column: usize) {
        let (top, bottom) = (self.buffer().top, self.buffer().bottom);
        self.cursor.row = if self.cursor.origin {
            row.saturating_add(top).min(bottom)
        } else {
            row.min(self.size.rows - 1)
        };
        self.move_to_column(column);
    }

    pub(super) fn move_to_column(&mut self, column: usize) {
        self.cursor.column = column.min(self.size.columns - 1);
        self.cursor.pending = false;
    }

    /// Moves by rows; a cursor in the region stays in it.
    pub(super) fn move_rows(&mut self, up: usize, down: usize) {
        let (top, bottom) = (self.buffer().top, self.buffer().bottom);
        let row = self.cursor.row;
        let first = if row >= top { top } else { 0 };
        let last = if row <= bottom {
            bottom
        } else {
            self.size.rows - 1
        };
        self.cursor.row = row.saturating_sub(up).max(first);
        self.cursor.row = self.cursor.row.saturating_add(down).min(last);
        self.cursor.pending = false;
    }

    pub(super) fn save_cursor(&mut self) {
        let cursor = self.cursor;
        self.buffer_mut().saved = cursor;
    }

    pub(super) fn restore_cursor(&mut self) {
        self.cursor = self.buffer().saved;
        if self.cursor.origin {
            let (top, bottom) = (self.buffer().top, self.buffer().bottom);
            self.cursor.row = self.cursor.row.clamp(top, bottom);
        }
    }

    /// Switches to an empty alternate screen.
    pub(super) fn enter_alternate(&mut self) {
        if self.alternate.is_none() {
            self.alternate = Some(Buffer::new(self.size.rows));
        }
    }

    /// Switches back to the main screen.
    pub(super) fn leave_alternate(&mut self) {
        self.alternate = None;
        let (top, bottom) = (self.main.top, self.main.bottom);
        if self.cursor.origin {
            self.cursor.row = self.cursor.row.clamp(top, bottom);
        }
    }

    /// Sets the scroll region, unless it is invalid.
    pub(super) fn set_region(&mut self, top: usize, bottom: usize) {
        let bottom = bottom.min(self.size.rows - 1);
        if top < bottom || (top == bottom && self.size.rows == 1) {
            let buffer = self.buffer_mut();
            (buffer.top, buffer.bottom) = (top, bottom);
            self.move_to(0, 0);
        }
    }

    /// DECSTR: resets all but the contents.
    pub(super) fn soft_reset(&mut self) {
        let bottom = self.size.rows - 1;
        let buffer = self.buffer_mut();
        (buffer.top, buffer.bottom) = (0, bottom);
        buffer.saved = Cursor::default();
        self.modes.wrap = true;
        self.modes.insert = false;
        for (index, (number, set)) in PASSIVE.iter().enumerate() {
            if matches!(number, 1 | 25 | 66) {
                self.modes.passive[index] = *set;
            }
        }
        self.cursor = Cursor {
            row: self.cursor.row,
            column: self.cursor.column,
            ..Cursor::default()
        };
    }

    pub(super) fn resize(&mut self, size: Size) {
        if size == self.size {
            return;
        }
        self.last = None;
        if size.columns < self.size.columns {
            self.scrollback
                .narrow(self.size.columns, size.columns, Size::MAX.rows);
        } else {
            self.scrollback.widen(self.size.columns);
        }
        let old = self.size;
        let shown = self.alternate.is_none();
        let anchor = if shown { self.cursor } else { self.main.saved };
        let moved = resize_buffer(
            &mut self.main,
            old,
            size,
            anchor.row,
            Some(&mut self.scrollback),
        );
        move_cursor(&mut self.main.saved, moved, size);
        if size.columns < self.size.columns {
            // Rows that were just pushed have the old width.
            self.scrollback
                .narrow(self.size.columns, size.columns, Size::MAX.rows);
        }
        if let Some(alternate) = &mut self.alternate {
            let moved = resize_buffer(alternate, old, size, self.cursor.row, None);
            move_cursor(&mut alternate.saved, moved, size);
            move_cursor(&mut self.cursor, moved, size);
        } else {
            move_cursor(&mut self.cursor, moved, size);
        }
        self.tabs.truncate(size.columns);
        self.tabs
            .extend((self.tabs.len()..size.columns).map(is_default_tab_stop));
        self.size = size;
    }
}

pub(super) fn is_default_tab_stop(column: usize) -> bool {
    column.is_multiple_of(8)
}

/// Resizes a buffer; returns by how many rows its contents moved.
fn resize_buffer(
    buffer: &mut Buffer,
    old: Size,
    new: Size,
    cursor: usize,
    mut scrollback: Option<&mut Scrollback>,
) -> isize {
    let mut moved = 0;
    if new.columns > old.columns {
        for row in &mut buffer.rows {
            row.fill_to(old.columns);
        }
    }
    // Rows below the cursor are dropped first.
    let below = (old.rows - 1).saturating_sub(cursor);
    let excess = old.rows.saturating_sub(new.rows);
    buffer.rows.truncate(old.rows - excess.min(below));
    while buffer.rows.len() > new.rows {
        let row = buffer.rows.pop_front().unwrap_or_default();
        if let Some(scrollback) = &mut scrollback {
            scrollback.push(row, Size::MAX.rows);
        }
        moved -= 1;
    }
    // With the cursor in the last row, scrollback comes back.
    while buffer.rows.len() < new.rows {
        let back = scrollback
            .as_mut()
            .filter(|_| below == 0)
            .and_then(|scrollback| scrollback.pop());
        if let Some(row) = back {
            buffer.rows.push_front(row);
            moved += 1;
        } else {
            buffer.rows.push_back(Row::default());
        }
    }
    for row in &mut buffer.rows {
        row.truncate(new.columns);
        row.shrink(new.columns);
    }
    (buffer.top, buffer.bottom) = (0, new.rows - 1);
    moved
}

fn move_cursor(cursor: &mut Cursor, moved: isize, size: Size) {
    cursor.row = cursor.row.saturating_add_signed(moved).min(size.rows - 1);
    if cursor.column >= size.columns {
        cursor.column = size.columns - 1;
    }
    cursor.pending = false;
}

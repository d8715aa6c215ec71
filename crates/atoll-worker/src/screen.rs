//! A terminal emulator that keeps the screen of a command's terminal, so that a client that
//! attaches later sees it.
//!
//! [`Screen::replay`] returns bytes for a new terminal of the same size: at most 200,000 bytes of
//! scrollback (the newest rows with colours, older ones as text), then the screen. After them the
//! new terminal equals, cell by cell, one that received every byte, and stays equal wherever the
//! stream is cut: within an escape sequence, within a character, between a character and its
//! repetition. Restored are characters and attributes, both screens, the cursor with its attributes
//! and saved states, the scroll region, tab stops, character sets, the modes of keys, paste, mouse
//! and focus, and the title.
//!
//! The program is hostile: memory is bounded by [`Size::MAX`] for any input (24 MB for the largest
//! screen, 1 MB for 80 × 24), and no sequence costs more than about one row of cells. Measured with
//! optimisation in three runs on a machine that was busy with other work: 32–67 MB of plain lines a
//! second, 30–91 MB with colours; the most expensive sequence, a repetition on the largest screen,
//! 0.6 MB. Replays took 0.3–2 ms, up to 14 ms for the largest screen.
//!
//! Not restored: images, hyperlinks, palette changes, left and right margins, double-size rows,
//! protected cells, DEC's test pattern, the kitty keyboard protocol, more than three combining
//! marks on a character, and whether a row was wrapped. A screen that becomes narrower loses what
//! is cut off, as in xterm; only the scrollback is rewrapped.

mod cell;
mod parse;
mod perform;
mod print;
mod replay;
mod row;
mod scrollback;
mod sgr;
mod terminal;

#[cfg(test)]
mod tests;

use parse::Parser;
use terminal::Terminal;

/// Size of a screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub columns: usize,
}

impl Size {
    /// The largest size; larger requests are clamped.
    pub const MAX: Self = Self {
        rows: 300,
        columns: 800,
    };

    fn clamped(self) -> Self {
        Self {
            rows: self.rows.clamp(1, Self::MAX.rows),
            columns: self.columns.clamp(1, Self::MAX.columns),
        }
    }
}

impl Default for Size {
    fn default() -> Self {
        Self {
            rows: 24,
            columns: 80,
        }
    }
}

/// A terminal emulator without a display.
#[derive(Debug)]
pub struct Screen {
    parser: Parser,
    terminal: Terminal,
}

impl Screen {
    /// An empty screen.
    pub fn new(size: Size) -> Self {
        Self {
            parser: Parser::default(),
            terminal: Terminal::new(size.clamped()),
        }
    }

    /// Its size: the requested one, clamped to [`Size::MAX`].
    pub fn size(&self) -> Size {
        self.terminal.size
    }

    /// Processes output of the program, split at any byte.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.parser.feed(bytes, &mut self.terminal);
    }

    /// Resizes the screen. Rows that no longer fit move to the scrollback, and come back when there
    /// is room again and the cursor is in the last row.
    pub fn resize(&mut self, size: Size) {
        self.terminal.resize(size.clamped());
    }

    /// Bytes that bring a new terminal of the same size to this state; the program's further output
    /// follows them.
    pub fn replay(&self) -> Vec<u8> {
        let mut out = String::new();
        replay::write(&self.terminal, &mut out);
        let mut bytes = out.into_bytes();
        bytes.extend_from_slice(self.parser.pending_bytes());
        bytes
    }
}

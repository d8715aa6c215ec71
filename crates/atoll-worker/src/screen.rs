//! What a terminal shows, kept from the bytes its program wrote, so that whoever attaches later sees
//! it.
//!
//! [`Screen::replay`] gives bytes for a fresh terminal of the same size: at most 200,000 bytes of
//! scrollback (the newest rows with their colours, what is older as text), then the screen. After
//! them it shows, cell by cell, what one shows that saw every byte, and goes on the same way however
//! the stream is cut: within a sequence, within a character, between a character and its repetition.
//! Restored are characters and their looks, both screens, the cursor with all it carries and what was
//! saved of it, the scrolling region, tabulators, character sets, the modes of keys, paste, mouse and
//! focus, and the title.
//!
//! The program is hostile: memory is bounded by [`Size::MAX`] whatever it writes (24 MB for the
//! largest screen, 1 MB for 80 × 24), and no sequence costs more than about one row of cells.
//! Measured with optimisation in three runs on a machine that was busy with other work: 32–67 MB of plain
//! lines a second, 30–91 MB with colours; the dearest sequence, a repetition on the largest screen, 0.6
//! MB. Replays took 0.3–2 ms, up to 14 ms from the largest screen.
//!
//! Not kept: pictures, hyperlinks, changed palettes, left and right margins, rows of double size,
//! protected cells, DEC's test pattern, key modes of kitty, more than three marks on one character, and which rows
//! were broken only because they were full. A screen that becomes narrower loses what is cut off, as
//! in xterm; only what is above it is broken into more rows.

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

/// Rows and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// How many rows.
    pub rows: usize,
    /// How many columns.
    pub columns: usize,
}

impl Size {
    /// The largest; what is asked for beyond is not given.
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

/// A terminal without a window.
#[derive(Debug)]
pub struct Screen {
    parser: Parser,
    terminal: Terminal,
}

impl Screen {
    /// An empty one.
    pub fn new(size: Size) -> Self {
        Self {
            parser: Parser::default(),
            terminal: Terminal::new(size.clamped()),
        }
    }

    /// Its size, which is what was asked for within [`Size::MAX`].
    pub fn size(&self) -> Size {
        self.terminal.size
    }

    /// Takes what the program wrote, cut anywhere.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.parser.feed(bytes, &mut self.terminal);
    }

    /// Makes it another size. Rows that no longer fit leave at the top; they come back when there is
    /// room again and the cursor is in the last row.
    pub fn resize(&mut self, size: Size) {
        self.terminal.resize(size.clamped());
    }

    /// Bytes for a fresh terminal of the same size; what the program writes from now on follows them.
    pub fn replay(&self) -> Vec<u8> {
        let mut out = String::new();
        replay::write(&self.terminal, &mut out);
        let mut bytes = out.into_bytes();
        bytes.extend_from_slice(self.parser.pending_bytes());
        bytes
    }
}

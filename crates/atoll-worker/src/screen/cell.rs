//! A cell of the screen, and its attributes (SGR).

use std::fmt::Write;

/// A colour as in SGR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Color {
    #[default]
    Default,
    Index(u8),
    Rgb(u8, u8, u8),
}

pub(super) const BOLD: u8 = 1;
pub(super) const DIM: u8 = 1 << 1;
pub(super) const ITALIC: u8 = 1 << 2;
pub(super) const BLINK: u8 = 1 << 3;
pub(super) const INVERSE: u8 = 1 << 4;
pub(super) const HIDDEN: u8 = 1 << 5;
pub(super) const STRUCK: u8 = 1 << 6;
pub(super) const OVERLINE: u8 = 1 << 7;

/// SGR parameter of each attribute.
const ATTRIBUTES: [(u8, u8); 8] = [
    (BOLD, 1),
    (DIM, 2),
    (ITALIC, 3),
    (BLINK, 5),
    (INVERSE, 7),
    (HIDDEN, 8),
    (STRUCK, 9),
    (OVERLINE, 53),
];

/// Attributes of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Style {
    pub(super) foreground: Color,
    pub(super) background: Color,
    /// Colour of the underline.
    pub(super) line: Color,
    /// Underline: 0 none, 1 single, 2 double, 3 curly, 4 dotted, 5 dashed.
    pub(super) underline: u8,
    /// Bits of the attributes above.
    pub(super) attributes: u8,
}

impl Style {
    /// The style of a cell erased with this style.
    pub(super) fn erased(self) -> Self {
        Self {
            background: self.background,
            ..Self::default()
        }
    }

    /// Appends the SGR sequence that sets exactly this style.
    pub(super) fn write(self, out: &mut String) {
        out.push_str("\x1b[0");
        for (bit, number) in ATTRIBUTES {
            if self.attributes & bit != 0 {
                let _ = write!(out, ";{number}");
            }
        }
        match self.underline {
            0 => {}
            1 => out.push_str(";4"),
            2 => out.push_str(";21"),
            kind => {
                let _ = write!(out, ";4:{kind}");
            }
        }
        write_color(out, self.foreground, 30, 90, 38);
        write_color(out, self.background, 40, 100, 48);
        match self.line {
            Color::Default => {}
            Color::Index(index) => {
                let _ = write!(out, ";58:5:{index}");
            }
            Color::Rgb(red, green, blue) => {
                let _ = write!(out, ";58:2::{red}:{green}:{blue}");
            }
        }
        out.push('m');
    }
}

fn write_color(out: &mut String, color: Color, dark: u8, bright: u8, long: u8) {
    let _ = match color {
        Color::Default => Ok(()),
        Color::Index(index @ 0..8) => write!(out, ";{}", dark + index),
        Color::Index(index @ 8..16) => write!(out, ";{}", bright + index - 8),
        Color::Index(index) => write!(out, ";{long};5;{index}"),
        Color::Rgb(red, green, blue) => write!(out, ";{long};2;{red};{green};{blue}"),
    };
}

/// Width of a cell's character.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Width {
    #[default]
    Narrow,
    /// Also occupies the next cell.
    Wide,
    /// The second cell of a wide character.
    Continuation,
}

/// Combining marks of one character; further ones are dropped, so that cells, and with them
/// screens, have a fixed size.
const MAX_MARKS: usize = 3;

/// One cell: 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Cell {
    /// NUL if nothing was written since the last erase.
    base: char,
    marks: [char; MAX_MARKS],
    pub(super) width: Width,
    pub(super) style: Style,
}

impl Cell {
    pub(super) fn new(base: char, width: Width, style: Style) -> Self {
        Self {
            base,
            width,
            style,
            ..Self::default()
        }
    }

    /// An empty cell, erased with this style.
    pub(super) fn erased(style: Style) -> Self {
        Self::new('\0', Width::Narrow, style.erased())
    }

    /// Whether the cell has a character.
    pub(super) fn is_written(&self) -> bool {
        self.base != '\0'
    }

    /// Adds a combining mark.
    pub(super) fn add_mark(&mut self, mark: char) {
        if let Some(free) = self.marks.iter_mut().find(|free| **free == '\0') {
            *free = mark;
        }
    }

    /// Appends the character with its marks; a space for an empty cell.
    pub(super) fn write(&self, out: &mut String) {
        out.push(if self.is_written() { self.base } else { ' ' });
        out.extend(self.marks.iter().filter(|mark| **mark != '\0'));
    }
}

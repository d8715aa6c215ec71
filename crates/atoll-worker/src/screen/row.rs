//! One row of a screen. Cells at its end that were erased together are not stored: erasing a row, or
//! a screen of them, costs nothing that a program could make a server pay again and again.

use super::cell::{Cell, Style, Width};

#[derive(Debug, Clone, Default)]
pub(super) struct Row {
    /// The cells up to the last that differs from `fill`, or further.
    cells: Vec<Cell>,
    /// What is behind them.
    fill: Style,
    /// Its text goes on in the next row.
    pub(super) wrapped: bool,
}

impl Row {
    /// Erases all of it and keeps its memory.
    pub(super) fn clear(&mut self, style: Style) {
        self.cells.clear();
        self.fill = style.erased();
        self.wrapped = false;
    }

    pub(super) fn get(&self, column: usize) -> Cell {
        let blank = Cell::erased(self.fill);
        self.cells.get(column).copied().unwrap_or(blank)
    }

    /// The cells that are stored; all behind them look like [`Row::rest`].
    pub(super) fn stored(&self) -> &[Cell] {
        &self.cells
    }

    /// What is behind the stored cells.
    pub(super) fn fill_style(&self) -> Style {
        self.fill
    }

    /// Stores at least so many cells.
    fn extend_to(&mut self, columns: usize) {
        if self.cells.len() < columns {
            self.cells.resize(columns, Cell::erased(self.fill));
        }
    }

    /// Puts a character into a cell, and one behind it if it is wide.
    pub(super) fn put(&mut self, column: usize, cell: Cell) {
        let end = column + if cell.width == Width::Wide { 2 } else { 1 };
        self.extend_to(end);
        self.split_wide_at(column);
        self.split_wide_at(end);
        self.cells[column] = cell;
        if cell.width == Width::Wide {
            self.cells[column + 1] = Cell::new('\0', Width::Continuation, cell.style);
        }
    }

    /// Puts a run of narrow ASCII.
    pub(super) fn put_ascii(&mut self, column: usize, text: &[u8], style: Style) {
        let end = column + text.len();
        self.extend_to(end);
        self.split_wide_at(column);
        self.split_wide_at(end);
        for (cell, byte) in self.cells[column..end].iter_mut().zip(text) {
            *cell = Cell::new(char::from(*byte), Width::Narrow, style);
        }
    }

    /// Adds a mark to the character of a cell.
    pub(super) fn add_mark(&mut self, column: usize, mark: char) {
        let column = match self.get(column).width {
            Width::Continuation => column.saturating_sub(1),
            _ => column,
        };
        if let Some(cell) = self.cells.get_mut(column).filter(|cell| cell.is_written()) {
            cell.add_mark(mark);
        }
    }

    /// Something begins at this column: a wide character across it is no more.
    fn split_wide_at(&mut self, column: usize) {
        if column > 0
            && self
                .cells
                .get(column)
                .is_some_and(|cell| cell.width == Width::Continuation)
        {
            for cell in &mut self.cells[column - 1..=column] {
                *cell = Cell::erased(cell.style);
            }
        }
    }

    /// Erases cells of a row of `columns`.
    pub(super) fn erase(&mut self, from: usize, to: usize, columns: usize, style: Style) {
        let to = to.min(columns);
        if from >= to {
            return;
        }
        self.split_wide_at(from);
        self.split_wide_at(to);
        if to == columns {
            self.extend_to(from);
            self.cells.truncate(from);
            self.fill = style.erased();
            self.wrapped = false;
        } else {
            self.extend_to(to);
            self.cells[from..to].fill(Cell::erased(style));
        }
    }

    /// Moves what is from a column on to the right, and erases what was there.
    pub(super) fn insert(&mut self, at: usize, count: usize, columns: usize, style: Style) {
        let count = count.min(columns - at);
        self.split_wide_at(at);
        if at < self.cells.len() {
            let blank = std::iter::repeat_n(Cell::erased(style), count);
            self.cells.splice(at..at, blank);
            self.truncate(columns);
        } else {
            self.extend_to(at + count);
            self.cells[at..at + count].fill(Cell::erased(style));
        }
    }

    /// Removes cells; what is behind moves left.
    pub(super) fn delete(&mut self, at: usize, count: usize, columns: usize, style: Style) {
        let count = count.min(columns - at);
        self.split_wide_at(at);
        self.split_wide_at(at + count);
        // What comes in at the right may look unlike what is there.
        self.extend_to(columns);
        self.cells.drain(at..at + count);
        self.fill = style.erased();
    }

    /// Makes it fit so many columns.
    pub(super) fn truncate(&mut self, columns: usize) {
        if self.cells.len() > columns {
            self.split_wide_at(columns);
            self.cells.truncate(columns);
        }
    }

    /// More columns follow these: they are empty, whatever the end of the row looked like.
    pub(super) fn fill_to(&mut self, columns: usize) {
        if self.fill != Style::default() {
            self.extend_to(columns);
            self.fill = Style::default();
        }
    }

    /// Stores no more than must be.
    pub(super) fn trim(&mut self) {
        let blank = Cell::erased(self.fill);
        while self.cells.last() == Some(&blank) {
            self.cells.pop();
        }
    }

    /// Takes off what does not fit so many columns, as a row of its own.
    pub(super) fn split(&mut self, columns: usize) -> Option<Self> {
        if self.cells.len() <= columns {
            return None;
        }
        let wide = columns > 1 && self.cells[columns].width == Width::Continuation;
        if !wide {
            self.split_wide_at(columns);
        }
        let cells = self
            .cells
            .split_off(if wide { columns - 1 } else { columns });
        let wrapped = std::mem::replace(&mut self.wrapped, true);
        Some(Self {
            cells,
            fill: self.fill,
            wrapped,
        })
    }

    /// Memory beyond this many cells is given back.
    pub(super) fn shrink(&mut self, columns: usize) {
        self.cells.shrink_to(columns);
    }

    /// Appends its text without the spaces at its end, unless it goes on.
    pub(super) fn write_text(&self, out: &mut String) {
        let start = out.len();
        for cell in &self.cells {
            if cell.width != Width::Continuation {
                cell.write(out);
            }
        }
        if !self.wrapped {
            let end = out[start..].trim_end_matches(' ').len();
            out.truncate(start + end);
        }
    }
}

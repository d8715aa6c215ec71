//! One row of a screen. Equal cells at its end, erased together, are not stored, so that erasing a
//! row or a screen is cheap.

use super::cell::{Cell, Style, Width};

#[derive(Debug, Clone, Default)]
pub(super) struct Row {
    /// Cells up to the last that differs from `fill`, possibly more.
    cells: Vec<Cell>,
    /// Style of all cells after the stored ones.
    fill: Style,
    /// The text continues in the next row (wrapped).
    pub(super) wrapped: bool,
}

impl Row {
    /// Erases the row and keeps its memory.
    pub(super) fn clear(&mut self, style: Style) {
        self.cells.clear();
        self.fill = style.erased();
        self.wrapped = false;
    }

    pub(super) fn get(&self, column: usize) -> Cell {
        let blank = Cell::erased(self.fill);
        self.cells.get(column).copied().unwrap_or(blank)
    }

    /// Stored cells; all after them are empty with [`Row::fill_style`].
    pub(super) fn stored(&self) -> &[Cell] {
        &self.cells
    }

    /// Style of the cells after the stored ones.
    pub(super) fn fill_style(&self) -> Style {
        self.fill
    }

    /// Stores at least this many cells.
    fn extend_to(&mut self, columns: usize) {
        if self.cells.len() < columns {
            self.cells.resize(columns, Cell::erased(self.fill));
        }
    }

    /// Writes a cell, and the continuation cell of a wide character.
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

    /// Writes a run of narrow ASCII characters.
    pub(super) fn put_ascii(&mut self, column: usize, text: &[u8], style: Style) {
        let end = column + text.len();
        self.extend_to(end);
        self.split_wide_at(column);
        self.split_wide_at(end);
        for (cell, byte) in self.cells[column..end].iter_mut().zip(text) {
            *cell = Cell::new(char::from(*byte), Width::Narrow, style);
        }
    }

    /// Adds a combining mark to a cell's character.
    pub(super) fn add_mark(&mut self, column: usize, mark: char) {
        let column = match self.get(column).width {
            Width::Continuation => column.saturating_sub(1),
            _ => column,
        };
        if let Some(cell) = self.cells.get_mut(column).filter(|cell| cell.is_written()) {
            cell.add_mark(mark);
        }
    }

    /// Erases a wide character that spans this column.
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

    /// Erases cells of a row with `columns` columns.
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

    /// Inserts empty cells; cells after them move right.
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

    /// Deletes cells; cells after them move left.
    pub(super) fn delete(&mut self, at: usize, count: usize, columns: usize, style: Style) {
        let count = count.min(columns - at);
        self.split_wide_at(at);
        self.split_wide_at(at + count);
        // The cells that appear at the right may have another style.
        self.extend_to(columns);
        self.cells.drain(at..at + count);
        self.fill = style.erased();
    }

    /// Cuts the row to this many columns.
    pub(super) fn truncate(&mut self, columns: usize) {
        if self.cells.len() > columns {
            self.split_wide_at(columns);
            self.cells.truncate(columns);
        }
    }

    /// Materialises the fill up to a column, before the row becomes wider: new columns have the
    /// default style.
    pub(super) fn fill_to(&mut self, columns: usize) {
        if self.fill != Style::default() {
            self.extend_to(columns);
            self.fill = Style::default();
        }
    }

    /// Drops stored cells that equal the fill.
    pub(super) fn trim(&mut self) {
        let blank = Cell::erased(self.fill);
        while self.cells.last() == Some(&blank) {
            self.cells.pop();
        }
    }

    /// Splits the row after this many columns and returns the rest.
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

    /// Releases memory beyond this many cells.
    pub(super) fn shrink(&mut self, columns: usize) {
        self.cells.shrink_to(columns);
    }

    /// Appends the text, without trailing spaces unless the row is wrapped.
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

//! Replay: bytes that bring a new terminal into the state of this one.
//!
//! Contents are written while all modes have their defaults, then the scroll region, then, in an
//! order in which they do not affect each other, the cursor and the modes. The saved cursor of each
//! screen is set up and saved again.

use std::fmt::Write;

use super::cell::{Style, Width};
use super::row::Row;
use super::terminal::{Buffer, Charset, Cursor, PASSIVE, Terminal, is_default_tab_stop};

pub(super) fn write(terminal: &Terminal, out: &mut String) {
    write_scrollback(terminal, out);
    write_contents(&terminal.main, terminal, out);
    if let Some(alternate) = &terminal.alternate {
        write_region(&terminal.main, terminal, out);
        // Not 1049, which would save the cursor.
        out.push_str("\x1b[?47h\x1b[H\x1b[2J");
        write_contents(alternate, terminal, out);
    }
    write_title(terminal, out);
    write_tabs(terminal, out);
    write_region(terminal.buffer(), terminal, out);
    if terminal.cursor.origin {
        out.push_str("\x1b[?6h");
    }
    let Some((character, row, column)) = terminal.last else {
        restore_cursor(&terminal.cursor, terminal.buffer(), terminal, out);
        return write_modes(terminal, out);
    };
    // Written last, so that it can be repeated (REP).
    write_modes(terminal, out);
    write_charsets(&terminal.cursor, out);
    move_to(terminal, row, column, out);
    if terminal.modes.insert {
        let wide = terminal.buffer().rows[row].get(column).width == Width::Wide;
        out.push_str(if wide { "\x1b[2P" } else { "\x1b[P" });
    }
    terminal.cursor.style.write(out);
    out.push(character);
}

fn write_scrollback(terminal: &Terminal, out: &mut String) {
    let (text, rows) = terminal.scrollback.tail();
    let start = out.len();
    out.push_str(text);
    // The text's last line may continue in the first row.
    if !text.is_empty() && !text.ends_with('\n') {
        out.push_str("\r\n");
    }
    let mut style = Style::default();
    for row in rows {
        write_cells(row, None, terminal.size.columns, &mut style, out);
        set_style(&mut style, Style::default(), out);
        out.push_str("\r\n");
    }
    if out.len() > start {
        // Line feeds scroll all of it off the screen.
        out.extend(std::iter::repeat_n('\n', terminal.size.rows - 1));
    }
}

/// Contents of a screen, and its saved cursor.
fn write_contents(buffer: &Buffer, terminal: &Terminal, out: &mut String) {
    let mut style = Style::default();
    for (number, row) in buffer.rows.iter().enumerate() {
        write_cells(row, Some(number), terminal.size.columns, &mut style, out);
    }
    set_style(&mut style, Style::default(), out);
    if buffer.saved == Cursor::default() {
        out.push_str("\x1b[H\x1b7");
        return;
    }
    if buffer.saved.origin {
        out.push_str("\x1b[?6h");
    }
    let (row, column) = (buffer.saved.row, buffer.saved.column);
    let _ = write!(out, "\x1b[{};{}H", row + 1, column + 1);
    restore_cursor_at(&buffer.saved, buffer, (row, column), out);
    out.push_str("\x1b7\x1b[?6l\x1b[m\x0f\x1b(B\x1b)B\x1b*B\x1b+B");
}

/// Cells of a row, at a row of the screen or at the cursor.
fn write_cells(
    row: &Row,
    number: Option<usize>,
    columns: usize,
    style: &mut Style,
    out: &mut String,
) {
    let mut here = None;
    let stored = &row.stored()[..row.stored().len().min(columns)];
    let go_to = |column: usize, here: &mut Option<usize>, out: &mut String| {
        if *here != Some(column) {
            let _ = match number {
                Some(number) => write!(out, "\x1b[{};{}H", number + 1, column + 1),
                None if column > 0 => write!(out, "\x1b[{}G", column + 1),
                None => Ok(()),
            };
            *here = Some(column);
        }
    };
    let mut column = 0;
    while column < stored.len() {
        let cell = &stored[column];
        if cell.is_written() {
            go_to(column, &mut here, out);
            set_style(style, cell.style, out);
            cell.write(out);
            column += if cell.width == Width::Wide { 2 } else { 1 };
            // After the last column the cursor position is undefined.
            here = Some(column).filter(|column| *column < columns);
            continue;
        }
        let same = |other: &&super::cell::Cell| !other.is_written() && other.style == cell.style;
        let count = stored[column..].iter().take_while(same).count();
        if cell.style != Style::default() {
            go_to(column, &mut here, out);
            set_style(style, cell.style, out);
            let _ = write!(out, "\x1b[{count}X");
        }
        column += count;
    }
    if row.fill_style() != Style::default() && column < columns {
        go_to(column, &mut here, out);
        set_style(style, row.fill_style(), out);
        out.push_str("\x1b[K");
    }
}

fn set_style(from: &mut Style, to: Style, out: &mut String) {
    if *from != to {
        to.write(out);
        *from = to;
    }
}

fn write_title(terminal: &Terminal, out: &mut String) {
    if !terminal.title.is_empty() {
        let title = String::from_utf8_lossy(&terminal.title);
        let _ = write!(out, "\x1b]2;{title}\x1b\\");
    }
}

fn write_tabs(terminal: &Terminal, out: &mut String) {
    let default = (0..).map(is_default_tab_stop);
    if terminal
        .tabs
        .iter()
        .copied()
        .zip(default)
        .all(|(set, default)| set == default)
    {
        return;
    }
    out.push_str("\x1b[3g");
    for column in (0..terminal.tabs.len()).filter(|column| terminal.tabs[*column]) {
        let _ = write!(out, "\x1b[{}G\x1bH", column + 1);
    }
}

fn write_region(buffer: &Buffer, terminal: &Terminal, out: &mut String) {
    if (buffer.top, buffer.bottom) != (0, terminal.size.rows - 1) {
        let _ = write!(out, "\x1b[{};{}r", buffer.top + 1, buffer.bottom + 1);
    }
}

/// Moves the cursor, with the row relative to the region in origin mode.
fn move_to(terminal: &Terminal, row: usize, column: usize, out: &mut String) {
    let top = if terminal.cursor.origin {
        terminal.buffer().top
    } else {
        0
    };
    let row = row.saturating_sub(top);
    let _ = write!(out, "\x1b[{};{}H", row + 1, column + 1);
}

/// Restores the cursor with its attributes.
fn restore_cursor(cursor: &Cursor, buffer: &Buffer, terminal: &Terminal, out: &mut String) {
    move_to(terminal, cursor.row, cursor.column, out);
    restore_cursor_at(cursor, buffer, (cursor.row, cursor.column), out);
}

/// Restores the attributes of a cursor that is in place, and a pending wrap.
fn restore_cursor_at(
    cursor: &Cursor,
    buffer: &Buffer,
    (row, column): (usize, usize),
    out: &mut String,
) {
    if cursor.pending {
        let row = &buffer.rows[row];
        let mut cell = row.get(column);
        if cell.width == Width::Continuation && column > 0 {
            cell = row.get(column - 1);
            out.push_str("\x1b[D");
        }
        cell.style.write(out);
        cell.write(out);
    }
    cursor.style.write(out);
    write_charsets(cursor, out);
}

fn write_charsets(cursor: &Cursor, out: &mut String) {
    for (set, name) in cursor.charsets.iter().zip("()*+".chars()) {
        let letter = match set {
            Charset::Ascii => continue,
            Charset::British => 'A',
            Charset::Drawing => '0',
        };
        let _ = write!(out, "\x1b{name}{letter}");
    }
    out.push_str(match cursor.shift {
        1 => "\x0e",
        2 => "\x1bn",
        3 => "\x1bo",
        _ => "",
    });
}

/// Modes that do not move the cursor.
fn write_modes(terminal: &Terminal, out: &mut String) {
    let modes = &terminal.modes;
    for ((number, default), set) in PASSIVE.iter().zip(modes.passive) {
        if set != *default {
            // All terminals know the older sequence of keypad mode.
            let _ = match number {
                66 => write!(out, "\x1b="),
                _ => write!(out, "\x1b[?{number}{}", if set { 'h' } else { 'l' }),
            };
        }
    }
    for number in [modes.mouse, modes.mouse_form] {
        if number != 0 {
            let _ = write!(out, "\x1b[?{number}h");
        }
    }
    if modes.cursor_shape != 0 {
        let _ = write!(out, "\x1b[{} q", modes.cursor_shape);
    }
    if modes.other_keys != 0 {
        let _ = write!(out, "\x1b[>4;{}m", modes.other_keys);
    }
    for (set, sequence) in [
        (!modes.wrap, "\x1b[?7l"),
        (modes.insert, "\x1b[4h"),
        (modes.newline, "\x1b[20h"),
    ] {
        if set {
            out.push_str(sequence);
        }
    }
}

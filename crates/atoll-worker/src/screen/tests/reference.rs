//! Comparison with a reference terminal (vt100): fed with our replay and the rest of a stream, it
//! shows the same as when fed with the whole stream.

use std::num::NonZeroU16;

use proptest::prelude::*;

use super::{Screen, Size, assert_same, attach, fed};

/// Recorded output of programs on a terminal of 24 rows and 80 columns.
const RECORDED: [(&str, &[u8]); 4] = [
    ("vim", include_bytes!("recorded/vim")),
    ("less", include_bytes!("recorded/less")),
    ("tmux", include_bytes!("recorded/tmux")),
    ("shell", include_bytes!("recorded/shell")),
];

/// State of the reference terminal: cells with attributes, and the cursor.
fn reference_screen(size: Size, streams: &[&[u8]]) -> Vec<String> {
    let number = |number| NonZeroU16::new(u16::try_from(number).expect("small")).expect("not 0");
    let mut parser = vt100::Parser::new(number(size.rows), number(size.columns), 0);
    // In one piece: at a split it loses the character after an incomplete one.
    parser.process(&streams.concat());
    let screen = parser.screen();
    let (row, column) = screen.cursor_position();
    // It counts the column after the last as one.
    let column = usize::from(column).min(size.columns - 1);
    let mut seen = vec![format!(
        "cursor {row} {column} {} alternate {} keys {} {} paste {} mouse {:?} {:?}",
        screen.hide_cursor(),
        screen.alternate_screen(),
        screen.application_cursor(),
        screen.application_keypad(),
        screen.bracketed_paste(),
        screen.mouse_protocol_mode(),
        screen.mouse_protocol_encoding(),
    )];
    for row in 0..size.rows {
        for column in 0..size.columns {
            let cell = screen.cell(row as u16, column as u16).expect("a cell");
            let text = match cell.contents() {
                "" => " ",
                text => text,
            };
            seen.push(format!(
                "{row} {column} {text:?} {:?} {:?} {} {} {} {} {}",
                cell.fgcolor(),
                cell.bgcolor(),
                cell.bold(),
                cell.dim(),
                cell.italic(),
                cell.underline(),
                cell.inverse()
            ));
        }
    }
    seen
}

fn check(size: Size, stream: &[u8], cut: usize) -> Result<(), TestCaseError> {
    let (first, rest) = stream.split_at(cut);
    let mut screen = Screen::new(size);
    screen.feed(first);
    let late = reference_screen(size, &[&screen.replay(), rest]);
    for (late, early) in late.iter().zip(reference_screen(size, &[stream])) {
        prop_assert_eq!(late, &early, "cut at {}", cut);
    }
    Ok(())
}

#[test]
fn recorded_programs_are_replayed_from_any_byte() {
    for (name, stream) in RECORDED {
        let size = Size::default();
        let whole = fed(size.rows, size.columns, stream);
        // A prime step puts cuts everywhere within sequences.
        for cut in (0..=stream.len()).step_by(307) {
            let mut early = fed(size.rows, size.columns, &stream[..cut]);
            let mut late = attach(&early);
            assert_same(&late, &early).unwrap_or_else(|error| panic!("{name} {cut}: {error}"));
            for screen in [&mut early, &mut late] {
                screen.feed(&stream[cut..]);
            }
            assert_same(&late, &whole).unwrap_or_else(|error| panic!("{name} {cut}: {error}"));
            check(size, stream, cut).unwrap_or_else(|error| panic!("{name} {cut}: {error}"));
        }
    }
}

/// Streams that the reference handles as this emulator does. It keeps a cursor for each screen,
/// moves to the top of a new region, fills no new rows with a colour, supports neither drawing
/// characters nor insertion, and repeats characters from long ago; after a row movement it keeps a
/// pending wrap; and the other half of an overwritten wide character takes the new colour.
fn common_subset() -> impl Strategy<Value = String> {
    let word =
        |words: &[&'static str]| prop::sample::select(words.to_vec()).prop_map(str::to_owned);
    let piece = prop_oneof![
        5 => "[ -~]{1,20}",
        1 => word(&["ß", "e\u{301}", "ü"]),
        3 => word(&["\r", "\r\n", "\x1b7", "\x1b[4H\x1bM", "\x1b[m", "\x1b[?25l", "\x1b[?25h", "\x1b[?1h", "\x1b="]),
        2 => word(&["\x1b[0;1;31m", "\r\x1b[0;4;44mxy\x1b[m", "\x1b[0;7;38;5;200m", "\r\x1b[0;48;2;1;2;3mz\x1b[m"]),
        2 => (1..7_u16, 1..15_u16).prop_map(|(row, column)| format!("\x1b[{row};{column}H")),
        1 => (1..4_u16, 4..7_u16).prop_map(|(top, bottom)| format!("\x1b[{top};{bottom}r\x1b[{top}H")),
        2 => (1..5_u16, prop::sample::select(vec!['A', 'B', 'J', 'K', 'L', 'M']))
            .prop_map(|(count, last)| format!("\x1b[4H\x1b[m\x1b[{}{last}", count % 3)),
    ];
    prop::collection::vec(piece, 1..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn reference_terminal_shows_the_same_screen(text in common_subset(), cut in any::<prop::sample::Index>()) {
        let stream = text.as_bytes();
        check(Size { rows: 6, columns: 14 }, stream, cut.index(stream.len() + 1))?;
    }
}

//! A terminal that is attached late shows the same as one that received every byte.

mod reference;
mod streams;

use proptest::prelude::*;

use super::cell::Cell;
use super::{Screen, Size};

/// The complete state of a screen as text, to compare two.
fn describe(screen: &Screen) -> Vec<String> {
    let terminal = &screen.terminal;
    let visible = |cell: Cell| {
        let mut text = String::new();
        cell.write(&mut text);
        format!("{text:?} {:?} {:?}", cell.width, cell.style)
    };
    let mut seen = vec![
        format!("{:?} {:?}", terminal.size, terminal.cursor),
        format!("{:?} {:?}", terminal.modes, terminal.last),
        format!("{:?} {:?}", terminal.tabs, terminal.title),
        format!("begun {:?}", screen.parser.pending_bytes()),
    ];
    let shown = [
        ("main", Some(&terminal.main)),
        ("other", terminal.alternate.as_ref()),
    ];
    for (name, buffer) in shown {
        let Some(buffer) = buffer else { continue };
        let Size { rows, columns } = terminal.size;
        assert_eq!(buffer.rows.len(), rows);
        seen.push(format!(
            "{name} {} {} {:?}",
            buffer.top, buffer.bottom, buffer.saved
        ));
        for (number, row) in buffer.rows.iter().enumerate() {
            assert!(row.stored().len() <= columns);
            for column in 0..columns {
                seen.push(format!(
                    "{name} {number} {column} {}",
                    visible(row.get(column))
                ));
            }
        }
    }
    seen
}

fn assert_same(late: &Screen, early: &Screen) -> Result<(), TestCaseError> {
    for (late, early) in describe(late).iter().zip(describe(early)) {
        prop_assert_eq!(late, &early);
    }
    prop_assert_eq!(describe(late).len(), describe(early).len());
    Ok(())
}

/// A new terminal after a replay.
fn attach(screen: &Screen) -> Screen {
    let mut late = Screen::new(screen.size());
    late.feed(&screen.replay());
    late
}

/// The text of the screen.
fn text(screen: &Screen) -> Vec<String> {
    let row = |row: &super::row::Row| {
        let mut text = String::new();
        row.write_text(&mut text);
        text.trim_end().to_owned()
    };
    screen.terminal.buffer().rows.iter().map(row).collect()
}

fn fed(rows: usize, columns: usize, bytes: &[u8]) -> Screen {
    let mut screen = Screen::new(Size { rows, columns });
    screen.feed(bytes);
    screen
}

#[test]
fn text_wraps_and_scrolls() {
    let screen = fed(3, 4, "abcdef\r\n1\r\n日本x\n".as_bytes());
    assert_eq!(text(&screen), ["日本", "x", ""]);
    assert_eq!(
        (screen.terminal.cursor.row, screen.terminal.cursor.column),
        (2, 1)
    );
    let replay = String::from_utf8(screen.replay()).expect("text");
    assert!(replay.starts_with("abcd\r\nef\r\n1\r\n\n\n"), "{replay:?}");
}

#[test]
fn drawing_characters_insertion_and_repetition_are_rendered() {
    let screen = fed(
        4,
        8,
        b"\x1b(0lqk\x1b(B\r\nab\x1b[2D\x1b[4hXY\x1b[4l\r\nz\x1b[3b\x1b[31mr\x1b[9mq",
    );
    assert_eq!(text(&screen), ["┌─┐", "XYab", "zzzzrq", ""]);
}

#[test]
fn alternate_screen_leaves_the_main_screen_unchanged() {
    let mut screen = fed(3, 10, b"shell$ vim\x1b[?1049h\x1b[2;3Hhello");
    assert_eq!(text(&screen), ["", "  hello", ""]);
    let mut late = attach(&screen);
    for screen in [&mut screen, &mut late] {
        screen.feed(b"\x1b[?1049l!");
        assert_eq!(text(screen), ["shell$ vim", "!", ""]);
    }
}

#[test]
fn replay_contains_200_000_bytes_of_scrollback() {
    let mut screen = Screen::new(Size::default());
    for line in 0..100_000 {
        screen.feed(format!("line {line}\r\n").as_bytes());
    }
    let replay = String::from_utf8(screen.replay()).expect("text");
    let above = &replay[..replay.find("\n\n\n").expect("the end of the scrollback")];
    let text = above.replace("\r\n", "\n");
    assert!(
        (199_900..=200_000).contains(&above.len()),
        "{}",
        above.len()
    );
    assert!(text.trim_end().ends_with("\nline 99976"));
    assert!(text.starts_with("line "));
    assert!(assert_same(&attach(&screen), &screen).is_ok());
    screen.feed(b"\x1b[3J");
    assert!(screen.replay().len() < 1000);
}

#[test]
fn memory_is_bounded_for_any_input() {
    let mut screen = Screen::new(Size {
        rows: usize::MAX,
        columns: usize::MAX,
    });
    assert_eq!(screen.size(), Size::MAX);
    screen.resize(Size {
        rows: 0,
        columns: 0,
    });
    assert_eq!(
        screen.size(),
        Size {
            rows: 1,
            columns: 1
        }
    );
    screen.resize(Size {
        rows: 24,
        columns: 80,
    });
    let endless: [&[u8]; 9] = [
        b"a\xcc\x81\xcc\x81\xcc\x81\xcc\x81\xcc\x81\xcc\x81\xcc\x81\xcc\x81",
        b"\xcc\x81",
        b"\x1b[1;1;1;1;1;1;1;1;1;1;1",
        b";1",
        b"\x1b]0;title title title title",
        b" title",
        b"\x1bPsixel",
        b"\x1b(((((((",
        b"\x1b[?????9999999999",
    ];
    for piece in endless {
        for _ in 0..200_000 {
            screen.feed(piece);
        }
        assert!(screen.parser.pending_bytes().len() <= 2100);
        assert!(screen.replay().len() < 300_000, "{}", screen.replay().len());
        assert!(assert_same(&attach(&screen), &screen).is_ok());
    }
    assert!(std::mem::size_of::<Cell>() <= 32);
}

#[test]
fn string_longer_than_the_limit_still_ends() {
    let mut screen = fed(2, 20, b"a\x1b]52;c;");
    screen.feed(&vec![b'x'; 100_000]);
    let mut late = attach(&screen);
    for screen in [&mut screen, &mut late] {
        screen.feed(b"xx\x07b");
        assert_eq!(text(screen), ["ab", ""]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn late_client_sees_the_same_screen(stream in streams::stream(), cut in any::<prop::sample::Index>()) {
        streams::check(&stream, cut)?;
    }

    #[test]
    fn any_bytes_are_accepted(bytes in prop::collection::vec(any::<u8>(), 0..600), at in any::<prop::sample::Index>()) {
        let (first, rest) = bytes.split_at(at.index(bytes.len() + 1));
        let mut early = fed(5, 12, first);
        let mut late = attach(&early);
        assert_same(&late, &early)?;
        early.feed(rest);
        late.feed(rest);
        assert_same(&late, &early)?;
        // Another split of the input gives the same.
        let whole = fed(5, 12, &bytes);
        assert_same(&whole, &early)?;
    }
}

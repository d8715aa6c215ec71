//! Generated streams, usual and unusual ones.

use proptest::prelude::*;

use super::{Screen, Size, assert_same, attach};

/// A piece of a stream, or a resize.
#[derive(Clone)]
pub(super) enum Piece {
    Bytes(Vec<u8>),
    Resize(Size),
}

impl std::fmt::Debug for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{}", bytes.escape_ascii()),
            Self::Resize(size) => write!(f, "{}x{}", size.rows, size.columns),
        }
    }
}

fn sequence(last: &'static str) -> BoxedStrategy<Vec<u8>> {
    let numbers = prop::collection::vec(
        prop_oneof![Just(String::new()), (0..20_u16).prop_map(|n| n.to_string())],
        0..3,
    );
    let last = prop::sample::select(last.chars().collect::<Vec<_>>());
    (numbers, last)
        .prop_map(|(numbers, last)| format!("\x1b[{}{last}", numbers.join(";")).into_bytes())
        .boxed()
}

fn words(words: &[&'static str]) -> BoxedStrategy<Vec<u8>> {
    prop::sample::select(words.to_vec())
        .prop_map(|word| word.as_bytes().to_vec())
        .boxed()
}

fn piece() -> impl Strategy<Value = Piece> {
    let text = "[ -~]{1,30}".prop_map(String::into_bytes);
    let odd = words(&[
        "日本語",
        "e\u{301}",
        "👩\u{200d}💻",
        "ﾊ",
        "\u{301}",
        "ß",
        "字\x1b[5b",
        "x\x1b[7b",
        "\u{9b}",
        "\u{ad}",
    ]);
    let controls = words(&[
        "\r", "\n", "\r\n", "\t", "\x08", "\x0e", "\x0f", "\x0b", "\x07", "\x18", "\x7f",
    ]);
    let escapes = words(&[
        "\x1b7",
        "\x1b8",
        "\x1b=",
        "\x1b>",
        "\x1bD",
        "\x1bE",
        "\x1bH",
        "\x1bM",
        "\x1b(0",
        "\x1b(B",
        "\x1b)0",
        "\x1b)A",
        "\x1bn",
        "\x1b[!p",
        "\x1b]0;a title\x07",
        "\x1b]2;\u{fc}\x1b\\",
        "\x1bP1$r\x1b\\",
        "\x1b_x\x1b\\",
        "\x1b[3g",
        "\x1b[2 q",
        "\x1b[>4;2m",
        "\x1b[s",
        "\x1b[u",
    ]);
    let modes = (
        prop::sample::select(vec![
            1, 5, 6, 7, 9, 25, 47, 1000, 1002, 1003, 1004, 1006, 1047, 1048, 1049, 2004,
        ]),
        any::<bool>(),
    )
        .prop_map(|(mode, set)| {
            format!("\x1b[?{mode}{}", if set { 'h' } else { 'l' }).into_bytes()
        });
    let plain_modes = words(&["\x1b[4h", "\x1b[4l", "\x1b[20h", "\x1b[20l"]);
    let looks = words(&[
        "\x1b[m",
        "\x1b[1;31m",
        "\x1b[2;4;9m",
        "\x1b[44m",
        "\x1b[7;53m",
        "\x1b[38;5;200m",
        "\x1b[48;2;1;2;3m",
        "\x1b[4:3;58:2::9:8:7m",
        "\x1b[38:5:9m",
        "\x1b[97;101m",
        "\x1b[22;24m",
        "\x1b[21;3;5;8m",
        "\x1b[49m",
    ]);
    let bytes = prop_oneof![
        6 => text,
        3 => odd,
        4 => controls,
        3 => escapes,
        3 => modes,
        1 => plain_modes,
        3 => looks,
        4 => sequence("ABCDEFGHIJKLMPSTXZ@`abdefgr"),
        3 => sequence("Hr"),
        1 => prop::collection::vec(any::<u8>(), 1..6),
    ];
    prop_oneof![
        40 => bytes.prop_map(Piece::Bytes),
        1 => (1..9_usize, 1..20_usize).prop_map(|(rows, columns)| Piece::Resize(Size { rows, columns })),
    ]
}

pub(super) fn stream() -> impl Strategy<Value = Vec<Piece>> {
    prop::collection::vec(piece(), 1..60)
}

fn play(screen: &mut Screen, pieces: &[Piece]) {
    for piece in pieces {
        match piece {
            Piece::Bytes(bytes) => screen.feed(bytes),
            Piece::Resize(size) => screen.resize(*size),
        }
    }
}

/// One terminal receives everything; another is attached at the cut, which may be within a piece.
pub(super) fn check(stream: &[Piece], cut: prop::sample::Index) -> Result<(), TestCaseError> {
    let mut pieces = Vec::new();
    for piece in stream {
        match piece {
            Piece::Bytes(bytes) => {
                pieces.extend(bytes.iter().map(|byte| Piece::Bytes(vec![*byte])));
            }
            Piece::Resize(_) => pieces.push(piece.clone()),
        }
    }
    let (first, rest) = pieces.split_at(cut.index(pieces.len() + 1));
    let mut early = Screen::new(Size {
        rows: 6,
        columns: 14,
    });
    play(&mut early, first);
    let mut late = attach(&early);
    assert_same(&late, &early)?;
    play(&mut early, rest);
    play(&mut late, rest);
    assert_same(&late, &early)?;
    // Larger pieces give the same.
    let mut whole = Screen::new(Size {
        rows: 6,
        columns: 14,
    });
    play(&mut whole, stream);
    assert_same(&whole, &early)
}

//! A full-screen terminal program with colours, a scroll region and the alternate screen. It pauses at fixed
//! points, also within escape sequences. The probe writes the output and the library knows the points.

use std::fmt::Write;

/// Number of stops. At each the program waits for end of input (`^D`, which no terminal shows).
pub const STOPS: usize = 24;

/// Bytes before and after a stop: an escape sequence, a title or a character cut in two, or nothing.
const CUTS: [(&[u8], &[u8]); 6] = [
    (b"\x1b[3", b"1mred\x1b[0m"),
    (b"\x1b]0;ti", b"tle\x07"),
    (b"\xe6\xbc", b"\xa2"),
    (b"", b"\x1b[4b"),
    (b"\x1b", b"[7mback\x1b[27m"),
    (b"\x1b[?2004", b"h"),
];

/// Output up to stop number `stop`.
pub fn until_stop(stop: usize) -> Vec<u8> {
    let mut text = String::new();
    if stop == 0 {
        text += "\x1b]0;title\x07\x1b[?1049h\x1b[2J\x1b[?25l\x1b[?2004h\x1b[5;20r";
    }
    for number in stop * 20..(stop + 1) * 20 {
        let (row, column, colour) = (number % 30 + 1, number * 7 % 90 + 1, number % 8);
        let _ = write!(
            text,
            "\x1b[{row};{column}H\x1b[1;3{colour}mrow {number} \x1b[0m\x1b[4mé漢\x1b[24m"
        );
        if number % 11 == 0 {
            text += "\x1bM\r\n\n\x1b[2K";
        }
        if number % 97 == 0 {
            let _ = write!(text, "\x1b[?1049l shell {number}\r\n\x1b[?1049h");
        }
    }
    let _ = write!(text, "stop {stop}.");
    let before = stop
        .checked_sub(1)
        .map(|before| CUTS[before % CUTS.len()].1);
    let begun = CUTS[stop % CUTS.len()].0;
    [before.unwrap_or_default(), text.as_bytes(), begun].concat()
}

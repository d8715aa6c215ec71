//! SGR: attributes of the following characters.

use super::cell::{BLINK, BOLD, Color, DIM, HIDDEN, INVERSE, ITALIC, OVERLINE, STRUCK, Style};
use super::parse::Sequence;
use super::terminal::Terminal;

impl Terminal {
    /// Applies an SGR sequence to the cursor's style.
    pub(super) fn set_style(&mut self, sequence: &Sequence) {
        let style = &mut self.cursor.style;
        let mut groups = sequence.groups();
        while let Some(group) = groups.next() {
            let [number, more @ ..] = group else {
                continue;
            };
            match *number {
                0 => *style = Style::default(),
                1 => style.attributes |= BOLD,
                2 => style.attributes |= DIM,
                3 => style.attributes |= ITALIC,
                4 => style.underline = more.first().map_or(1, |kind| (*kind).min(5) as u8),
                5 | 6 => style.attributes |= BLINK,
                7 => style.attributes |= INVERSE,
                8 => style.attributes |= HIDDEN,
                9 => style.attributes |= STRUCK,
                21 => style.underline = 2,
                22 => style.attributes &= !(BOLD | DIM),
                23 => style.attributes &= !ITALIC,
                24 => style.underline = 0,
                25 => style.attributes &= !BLINK,
                27 => style.attributes &= !INVERSE,
                28 => style.attributes &= !HIDDEN,
                29 => style.attributes &= !STRUCK,
                53 => style.attributes |= OVERLINE,
                55 => style.attributes &= !OVERLINE,
                number @ 30..=37 => style.foreground = Color::Index((number - 30) as u8),
                number @ 40..=47 => style.background = Color::Index((number - 40) as u8),
                number @ 90..=97 => style.foreground = Color::Index((number - 82) as u8),
                number @ 100..=107 => style.background = Color::Index((number - 92) as u8),
                39 => style.foreground = Color::Default,
                49 => style.background = Color::Default,
                59 => style.line = Color::Default,
                number @ (38 | 48 | 58) => {
                    let Some(color) = color(more, &mut groups) else {
                        continue;
                    };
                    match number {
                        38 => style.foreground = color,
                        48 => style.background = color,
                        _ => style.line = color,
                    }
                }
                _ => {}
            }
        }
    }
}

/// An extended colour: its parameters are joined by colons, or are the following parameters.
fn color<'a>(joined: &[u16], next: &mut impl Iterator<Item = &'a [u16]>) -> Option<Color> {
    let byte = |number: u16| u8::try_from(number).ok();
    let mut follow = || next.next().and_then(|group| group.first().copied());
    match joined {
        [5, index, ..] => Some(Color::Index(byte(*index)?)),
        [2, _, red, green, blue, ..] | [2, red, green, blue] => {
            Some(Color::Rgb(byte(*red)?, byte(*green)?, byte(*blue)?))
        }
        [] => match follow()? {
            5 => Some(Color::Index(byte(follow()?)?)),
            2 => {
                let (red, green, blue) = (follow()?, follow()?, follow()?);
                Some(Color::Rgb(byte(red)?, byte(green)?, byte(blue)?))
            }
            _ => None,
        },
        _ => None,
    }
}

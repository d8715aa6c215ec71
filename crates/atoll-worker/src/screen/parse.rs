//! From bytes to what they mean: the state machine of DEC's terminals, for UTF-8. It stores at most
//! a few kilobytes, and at any moment can say with which bytes another terminal gets to where it is.

/// The longest sequence that is kept whole. Longer ones set no title and no mode.
const LONGEST: usize = 2048;
/// Numbers in one sequence.
const NUMBERS: usize = 32;

/// What a stream of bytes asks for.
pub(super) trait Perform {
    /// Printable ASCII.
    fn ascii(&mut self, text: &[u8]);
    /// Any other character.
    fn character(&mut self, character: char);
    /// A control character.
    fn control(&mut self, byte: u8);
    /// ESC, at most one byte between, and a last one.
    fn escape(&mut self, between: Option<u8>, last: u8);
    /// A control sequence.
    fn sequence(&mut self, sequence: &Sequence, last: u8);
    /// An operating system command.
    fn command(&mut self, text: &[u8]);
}

/// A control sequence's numbers and marks.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    numbers: [u16; NUMBERS],
    /// Bit n: number n belongs to the one before it (a colon was between).
    joined: u32,
    count: usize,
    /// `?`, `>`, `<`, `=` or none.
    pub(super) private: Option<u8>,
    /// The byte before the last, or none.
    pub(super) between: Option<u8>,
}

impl Sequence {
    /// A number; 0 where it is absent.
    pub(super) fn number(&self, index: usize) -> u16 {
        self.numbers.get(index).copied().unwrap_or(0)
    }

    /// A count: at least 1.
    pub(super) fn count(&self, index: usize) -> usize {
        usize::from(self.number(index).max(1))
    }

    /// Numbers, those joined by colons together.
    pub(super) fn groups(&self) -> impl Iterator<Item = &[u16]> {
        let count = self.count.clamp(1, NUMBERS);
        let mut next = 0;
        std::iter::from_fn(move || {
            let start = next;
            if start >= count {
                return None;
            }
            next += 1;
            while next < count && self.joined & (1 << next) != 0 {
                next += 1;
            }
            Some(&self.numbers[start..next])
        })
    }

    fn digit(&mut self, digit: u8) {
        self.count = self.count.max(1);
        if let Some(number) = self.numbers.get_mut(self.count - 1) {
            *number = number.saturating_mul(10).saturating_add(u16::from(digit));
        }
    }

    fn next(&mut self, joined: bool) {
        self.count = self.count.max(1) + 1;
        if joined && self.count <= NUMBERS {
            self.joined |= 1 << (self.count - 1);
        }
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Ground,
    Escape,
    /// ESC and a byte between.
    Between,
    Sequence,
    /// A control sequence that means nothing.
    Nonsense,
    Command,
    /// Any other string: nothing in it is for a screen of cells.
    Other,
}

#[derive(Debug, Default)]
pub(super) struct Parser {
    state: State,
    /// The bytes of what has begun and not ended, but those that took effect already.
    begun: Vec<u8>,
    sequence: Sequence,
}

impl Parser {
    /// Bytes that bring a terminal from rest to where this one is.
    pub(super) fn begun(&self) -> &[u8] {
        &self.begun
    }

    pub(super) fn feed(&mut self, mut bytes: &[u8], act: &mut impl Perform) {
        while let [byte, rest @ ..] = bytes {
            if self.state == State::Ground {
                bytes = self.text(bytes, act);
            } else {
                self.step(*byte, act);
                bytes = rest;
            }
        }
    }

    /// Takes text off the front, or what ends it.
    fn text<'a>(&mut self, bytes: &'a [u8], act: &mut impl Perform) -> &'a [u8] {
        if !self.begun.is_empty() {
            return self.partial(bytes, act);
        }
        let end = |is: fn(&u8) -> bool| {
            bytes
                .iter()
                .position(|byte| !is(byte))
                .unwrap_or(bytes.len())
        };
        let ascii = end(|byte| matches!(byte, 0x20..=0x7e));
        if ascii > 0 {
            act.ascii(&bytes[..ascii]);
            return &bytes[ascii..];
        }
        if bytes[0] < 0x80 {
            self.ground(bytes[0], act);
            return &bytes[1..];
        }
        let (text, rest) = bytes.split_at(end(|byte| *byte >= 0x80));
        for chunk in text.utf8_chunks() {
            for character in chunk.valid().chars() {
                act.character(character);
            }
            let wrong = chunk.invalid();
            if !wrong.is_empty() {
                // Cut off at the end it may be the beginning of a character.
                let last = wrong.as_ptr_range().end == bytes.as_ptr_range().end;
                if last && incomplete(wrong) {
                    self.begun.extend_from_slice(wrong);
                } else {
                    act.character(char::REPLACEMENT_CHARACTER);
                }
            }
        }
        rest
    }

    /// Goes on with a character of which only a part was there.
    fn partial<'a>(&mut self, bytes: &'a [u8], act: &mut impl Perform) -> &'a [u8] {
        self.begun.push(bytes[0]);
        match std::str::from_utf8(&self.begun) {
            Ok(text) => {
                let character = text.chars().next();
                self.begun.clear();
                act.character(character.unwrap_or(char::REPLACEMENT_CHARACTER));
                &bytes[1..]
            }
            Err(error) if error.error_len().is_none() => &bytes[1..],
            Err(_) => {
                self.begun.clear();
                act.character(char::REPLACEMENT_CHARACTER);
                bytes
            }
        }
    }

    fn ground(&mut self, byte: u8, act: &mut impl Perform) {
        match byte {
            0x1b => self.begin(),
            0x7f => {}
            _ => act.control(byte),
        }
    }

    fn begin(&mut self) {
        self.begun.clear();
        self.begun.push(0x1b);
        self.sequence.clear();
        self.state = State::Escape;
    }

    fn rest(&mut self) {
        self.begun.clear();
        self.state = State::Ground;
    }

    fn step(&mut self, byte: u8, act: &mut impl Perform) {
        match (self.state, byte) {
            (_, 0x18 | 0x1a) => self.rest(),
            (State::Command, 0x07 | 0x1b) => {
                act.command(self.begun.get(2..).unwrap_or_default());
                self.rest();
                if byte == 0x1b {
                    self.begin();
                }
            }
            (_, 0x1b) => self.begin(),
            (State::Command, 0..0x20) | (State::Other, _) => {}
            (State::Command, _) => {
                self.keep(byte);
                if self.begun.len() >= LONGEST {
                    // No terminal knows this number; the end that is still to come ends it.
                    self.begun.truncate(2);
                    self.begun.extend_from_slice(b"9999;");
                }
            }
            // A control character within a sequence takes effect at once.
            (_, 0..0x20) => act.control(byte),
            (_, 0x7f..) => {}
            (State::Escape, b'[') => self.become_state(State::Sequence, byte),
            (State::Escape, b']') => self.become_state(State::Command, byte),
            // Whatever kind of string it is, its rest is to be ignored by who comes later: as of `X`.
            (State::Escape, b'P' | b'X' | b'^' | b'_') => self.become_state(State::Other, b'X'),
            (State::Escape, 0x20..0x30) => {
                self.sequence.between = Some(byte);
                self.become_state(State::Between, byte);
            }
            (State::Between, 0x20..0x30) => {
                // Two bytes between: nothing we know has them.
                self.sequence.between = Some(0);
                if self.begun.len() < 4 {
                    self.keep(byte);
                }
            }
            (State::Escape | State::Between, _) => {
                act.escape(self.sequence.between, byte);
                self.rest();
            }
            (State::Nonsense, 0x40..) => self.rest(),
            (State::Sequence, 0x40..) => {
                act.sequence(&self.sequence, byte);
                self.rest();
            }
            (State::Sequence, _) => self.part(byte),
            (State::Nonsense | State::Ground, _) => {}
        }
    }

    /// A byte within a control sequence.
    fn part(&mut self, byte: u8) {
        let sequence = &mut self.sequence;
        match byte {
            b'0'..=b'9' if sequence.between.is_none() => sequence.digit(byte - b'0'),
            b':' | b';' if sequence.between.is_none() => sequence.next(byte == b':'),
            b'<'..=b'?' if self.begun.len() == 2 => sequence.private = Some(byte),
            0x20..0x30 if sequence.between.is_none() => sequence.between = Some(byte),
            _ => return self.nonsense(),
        }
        if self.begun.len() >= LONGEST {
            return self.nonsense();
        }
        self.keep(byte);
    }

    fn nonsense(&mut self) {
        // A private mark behind a number: ignored up to its end by every terminal.
        self.begun.truncate(2);
        self.begun.extend_from_slice(b"1<");
        self.state = State::Nonsense;
    }

    fn become_state(&mut self, state: State, byte: u8) {
        self.state = state;
        self.keep(byte);
    }

    fn keep(&mut self, byte: u8) {
        self.begun.push(byte);
    }
}

/// These bytes, wrong as they are, may become a character.
fn incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

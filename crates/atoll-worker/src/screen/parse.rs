//! Parser for escape sequences in UTF-8 streams: the state machine of DEC terminals. It stores at
//! most a few kilobytes, and always has the bytes that bring another parser into the same state.

/// Longest sequence that is kept; longer ones are ignored.
const MAX_SEQUENCE_BYTES: usize = 2048;
/// Parameters of one sequence.
const MAX_PARAMS: usize = 32;

/// Receiver of parsed actions.
pub(super) trait Perform {
    /// Printable ASCII.
    fn print_ascii(&mut self, text: &[u8]);
    /// Any other printable character.
    fn print(&mut self, character: char);
    /// A C0 control character.
    fn execute(&mut self, byte: u8);
    /// An escape sequence: ESC, at most one intermediate byte, and a final byte.
    fn esc_dispatch(&mut self, intermediate: Option<u8>, last: u8);
    /// A control sequence (CSI).
    fn csi_dispatch(&mut self, sequence: &Sequence, last: u8);
    /// An operating system command (OSC).
    fn osc_dispatch(&mut self, text: &[u8]);
}

/// Parameters and markers of a control sequence.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    params: [u16; MAX_PARAMS],
    /// Bit n: parameter n is a subparameter of the one before (after a colon).
    joined: u32,
    count: usize,
    /// `?`, `>`, `<`, `=` or none.
    pub(super) private: Option<u8>,
    /// The intermediate byte, or none.
    pub(super) intermediate: Option<u8>,
}

impl Sequence {
    /// A parameter; 0 if absent.
    pub(super) fn param(&self, index: usize) -> u16 {
        self.params.get(index).copied().unwrap_or(0)
    }

    /// A parameter as a count: at least 1.
    pub(super) fn count(&self, index: usize) -> usize {
        usize::from(self.param(index).max(1))
    }

    /// Parameters, each with its subparameters.
    pub(super) fn groups(&self) -> impl Iterator<Item = &[u16]> {
        let count = self.count.clamp(1, MAX_PARAMS);
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
            Some(&self.params[start..next])
        })
    }

    fn push_digit(&mut self, digit: u8) {
        self.count = self.count.max(1);
        if let Some(number) = self.params.get_mut(self.count - 1) {
            *number = number.saturating_mul(10).saturating_add(u16::from(digit));
        }
    }

    fn next_param(&mut self, joined: bool) {
        self.count = self.count.max(1) + 1;
        if joined && self.count <= MAX_PARAMS {
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
    /// ESC and an intermediate byte.
    Intermediate,
    Csi,
    /// A control sequence that is ignored.
    Ignored,
    Osc,
    /// Any other string (DCS, SOS, PM, APC), which is ignored.
    IgnoredString,
}

#[derive(Debug, Default)]
pub(super) struct Parser {
    state: State,
    /// Bytes of the unfinished sequence or character, without control characters that took effect.
    pending: Vec<u8>,
    sequence: Sequence,
}

impl Parser {
    /// Bytes that bring a parser from the ground state into this one's.
    pub(super) fn pending_bytes(&self) -> &[u8] {
        &self.pending
    }

    pub(super) fn feed(&mut self, mut bytes: &[u8], performer: &mut impl Perform) {
        while let [byte, rest @ ..] = bytes {
            if self.state == State::Ground {
                bytes = self.text(bytes, performer);
            } else {
                self.step(*byte, performer);
                bytes = rest;
            }
        }
    }

    /// Consumes text, or one control character.
    fn text<'a>(&mut self, bytes: &'a [u8], performer: &mut impl Perform) -> &'a [u8] {
        if !self.pending.is_empty() {
            return self.partial(bytes, performer);
        }
        let end = |is: fn(&u8) -> bool| {
            bytes
                .iter()
                .position(|byte| !is(byte))
                .unwrap_or(bytes.len())
        };
        let ascii = end(|byte| matches!(byte, 0x20..=0x7e));
        if ascii > 0 {
            performer.print_ascii(&bytes[..ascii]);
            return &bytes[ascii..];
        }
        if bytes[0] < 0x80 {
            self.ground(bytes[0], performer);
            return &bytes[1..];
        }
        let (text, rest) = bytes.split_at(end(|byte| *byte >= 0x80));
        for chunk in text.utf8_chunks() {
            for character in chunk.valid().chars() {
                performer.print(character);
            }
            let invalid = chunk.invalid();
            if !invalid.is_empty() {
                // At the end of the input it may be the beginning of a character.
                let last = invalid.as_ptr_range().end == bytes.as_ptr_range().end;
                if last && is_incomplete(invalid) {
                    self.pending.extend_from_slice(invalid);
                } else {
                    performer.print(char::REPLACEMENT_CHARACTER);
                }
            }
        }
        rest
    }

    /// Continues an incomplete character.
    fn partial<'a>(&mut self, bytes: &'a [u8], performer: &mut impl Perform) -> &'a [u8] {
        self.pending.push(bytes[0]);
        match std::str::from_utf8(&self.pending) {
            Ok(text) => {
                let character = text.chars().next();
                self.pending.clear();
                performer.print(character.unwrap_or(char::REPLACEMENT_CHARACTER));
                &bytes[1..]
            }
            Err(error) if error.error_len().is_none() => &bytes[1..],
            Err(_) => {
                self.pending.clear();
                performer.print(char::REPLACEMENT_CHARACTER);
                bytes
            }
        }
    }

    fn ground(&mut self, byte: u8, performer: &mut impl Perform) {
        match byte {
            0x1b => self.begin_escape(),
            0x7f => {}
            _ => performer.execute(byte),
        }
    }

    fn begin_escape(&mut self) {
        self.pending.clear();
        self.pending.push(0x1b);
        self.sequence.clear();
        self.state = State::Escape;
    }

    fn reset(&mut self) {
        self.pending.clear();
        self.state = State::Ground;
    }

    fn step(&mut self, byte: u8, performer: &mut impl Perform) {
        match (self.state, byte) {
            (_, 0x18 | 0x1a) => self.reset(),
            (State::Osc, 0x07 | 0x1b) => {
                performer.osc_dispatch(self.pending.get(2..).unwrap_or_default());
                self.reset();
                if byte == 0x1b {
                    self.begin_escape();
                }
            }
            (_, 0x1b) => self.begin_escape(),
            (State::Osc, 0..0x20) | (State::IgnoredString, _) => {}
            (State::Osc, _) => {
                self.append(byte);
                if self.pending.len() >= MAX_SEQUENCE_BYTES {
                    // Replaces it by an unknown OSC number, which terminals ignore up to the
                    // string's end.
                    self.pending.truncate(2);
                    self.pending.extend_from_slice(b"9999;");
                }
            }
            // Control characters in a sequence take effect at once.
            (_, 0..0x20) => performer.execute(byte),
            (_, 0x7f..) => {}
            (State::Escape, b'[') => self.enter_state(State::Csi, byte),
            (State::Escape, b']') => self.enter_state(State::Osc, byte),
            // Every kind of string is replayed as SOS (`X`): its rest is ignored.
            (State::Escape, b'P' | b'X' | b'^' | b'_') => {
                self.enter_state(State::IgnoredString, b'X');
            }
            (State::Escape, 0x20..0x30) => {
                self.sequence.intermediate = Some(byte);
                self.enter_state(State::Intermediate, byte);
            }
            (State::Intermediate, 0x20..0x30) => {
                // No supported sequence has two intermediate bytes.
                self.sequence.intermediate = Some(0);
                if self.pending.len() < 4 {
                    self.append(byte);
                }
            }
            (State::Escape | State::Intermediate, _) => {
                performer.esc_dispatch(self.sequence.intermediate, byte);
                self.reset();
            }
            (State::Ignored, 0x40..) => self.reset(),
            (State::Csi, 0x40..) => {
                performer.csi_dispatch(&self.sequence, byte);
                self.reset();
            }
            (State::Csi, _) => self.csi_byte(byte),
            (State::Ignored | State::Ground, _) => {}
        }
    }

    /// A parameter or intermediate byte of a control sequence.
    fn csi_byte(&mut self, byte: u8) {
        let sequence = &mut self.sequence;
        match byte {
            b'0'..=b'9' if sequence.intermediate.is_none() => sequence.push_digit(byte - b'0'),
            b':' | b';' if sequence.intermediate.is_none() => sequence.next_param(byte == b':'),
            b'<'..=b'?' if self.pending.len() == 2 => sequence.private = Some(byte),
            0x20..0x30 if sequence.intermediate.is_none() => sequence.intermediate = Some(byte),
            _ => return self.ignore_sequence(),
        }
        if self.pending.len() >= MAX_SEQUENCE_BYTES {
            return self.ignore_sequence();
        }
        self.append(byte);
    }

    fn ignore_sequence(&mut self) {
        // A private marker after a number: terminals ignore such a sequence up to its final byte.
        self.pending.truncate(2);
        self.pending.extend_from_slice(b"1<");
        self.state = State::Ignored;
    }

    fn enter_state(&mut self, state: State, byte: u8) {
        self.state = state;
        self.append(byte);
    }

    fn append(&mut self, byte: u8) {
        self.pending.push(byte);
    }
}

/// Whether invalid bytes may be the beginning of a character.
fn is_incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

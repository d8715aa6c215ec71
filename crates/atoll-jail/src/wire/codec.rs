//! Bytes to values and back: little endian, lengths before contents, nothing optional, no panics.

/// The bytes are not a message of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed message")]
pub struct DecodeError;

/// A value that can be written into a message.
pub trait Encode {
    /// Appends the value.
    fn encode(&self, out: &mut Vec<u8>);
}

/// A value that can be read from a message.
pub trait Decode: Sized {
    /// Takes the value off the front of `input`.
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError>;

    /// Reads a whole message; anything left over is malformed.
    fn from_bytes(mut input: &[u8]) -> Result<Self, DecodeError> {
        let value = Self::decode(&mut input)?;
        if input.is_empty() {
            Ok(value)
        } else {
            Err(DecodeError)
        }
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Encode for $number {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
        impl Decode for $number {
            fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
                let (bytes, rest) = input.split_first_chunk().ok_or(DecodeError)?;
                *input = rest;
                Ok(Self::from_le_bytes(*bytes))
            }
        }
    )*};
}
numbers!(u8, u32, u64, i32, i64);

impl Encode for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        u8::from(*self).encode(out);
    }
}
impl Decode for bool {
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        match u8::decode(input)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError),
        }
    }
}

impl<T: Encode> Encode for Vec<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.len() as u32).encode(out);
        for item in self {
            item.encode(out);
        }
    }
}
impl<T: Decode> Decode for Vec<T> {
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        let count = u32::decode(input)? as usize;
        // Every item takes at least a byte: a length that lies cannot make us allocate.
        if count > input.len() {
            return Err(DecodeError);
        }
        let mut items = Self::with_capacity(count.min(1024));
        for _ in 0..count {
            items.push(T::decode(input)?);
        }
        Ok(items)
    }
}

impl Encode for String {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.len() as u32).encode(out);
        out.extend_from_slice(self.as_bytes());
    }
}
impl Decode for String {
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        Self::from_utf8(Vec::decode(input)?).map_err(|_| DecodeError)
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }
}
impl<T: Decode> Decode for Option<T> {
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        Ok(if bool::decode(input)? {
            Some(T::decode(input)?)
        } else {
            None
        })
    }
}

impl<A: Encode, B: Encode> Encode for (A, B) {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
        self.1.encode(out);
    }
}
impl<A: Decode, B: Decode> Decode for (A, B) {
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        Ok((A::decode(input)?, B::decode(input)?))
    }
}

/// Writes [`Encode`] and [`Decode`] for a struct by its fields, or for an enum by its tags.
macro_rules! wire {
    (struct $name:ident { $($field:ident),* $(,)? }) => {
        impl $crate::wire::Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                $( self.$field.encode(out); )*
            }
        }
        impl $crate::wire::Decode for $name {
            fn decode(input: &mut &[u8]) -> Result<Self, $crate::wire::DecodeError> {
                Ok(Self { $( $field: $crate::wire::Decode::decode(input)? ),* })
            }
        }
    };
    (enum $name:ident { $( $tag:literal => $variant:ident $({ $($field:ident),* })? $(( $inner:ident ))? ),* $(,)? }) => {
        impl $crate::wire::Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $( Self::$variant $({ $($field),* })? $(( $inner ))? => {
                        out.push($tag);
                        $( $( $field.encode(out); )* )?
                        $( $inner.encode(out); )?
                    } )*
                }
            }
        }
        impl $crate::wire::Decode for $name {
            fn decode(input: &mut &[u8]) -> Result<Self, $crate::wire::DecodeError> {
                match <u8 as $crate::wire::Decode>::decode(input)? {
                    $( $tag => {
                        $( $( let $field = $crate::wire::Decode::decode(input)?; )* )?
                        $( let $inner = $crate::wire::Decode::decode(input)?; )?
                        Ok(Self::$variant $({ $($field),* })? $(( $inner ))?)
                    } )*
                    _ => Err($crate::wire::DecodeError),
                }
            }
        }
    };
}
pub(crate) use wire;

//! Our own SDKs, against the released binary.

pub mod python;
pub mod typescript;

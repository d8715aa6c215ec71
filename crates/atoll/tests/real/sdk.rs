//! Our own SDKs, against the binary that users run.

pub mod python;
pub mod typescript;

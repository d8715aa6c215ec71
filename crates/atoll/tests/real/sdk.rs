//! Our own SDKs, against the binary that users run.

mod python;
mod typescript;

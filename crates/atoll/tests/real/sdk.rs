//! Our own SDKs, against the binary that users run.

mod typescript;

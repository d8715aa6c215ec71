//! What tests of the other crates stand on: the static probe, scratch directories that go away, and small disks to fill.
//!
//! Nothing here is shipped. A fixture that cannot be had panics and says why: there is no skipping.

#![allow(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a fixture that fails must fail its test"
)]

mod cage;
mod cutter;
mod deb;
#[path = "../probe/mountinfo.rs"]
mod mountinfo;
mod probe;
mod recorder;
mod run;
mod scratch;
#[path = "../probe/screen.rs"]
mod screen;
#[path = "../probe/stream.rs"]
mod stream;

pub use cage::{Cage, Disk};
pub use cutter::Cutter;
pub use deb::make_deb;
pub use mountinfo::{Mount, mounts};
pub use probe::{Attempt, attempts, probe, static_layer};
pub use recorder::Recorder;
pub use run::{run, run_within, wait_for};
pub use scratch::Scratch;
pub use screen::{STOPS, until_stop};
pub use stream::{Fnv64, Pattern, SCRIBBLED, Scribbles, fnv64, pattern};

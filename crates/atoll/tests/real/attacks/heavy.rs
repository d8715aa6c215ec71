//! Attacks that fill, bomb or race: they want the machine to themselves, and the name puts them into the test runner's
//! group of such tests.

mod bombs;
mod memory;
mod race;

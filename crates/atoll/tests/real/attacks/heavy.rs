//! Attacks with high load: memory, fork bombs and races. The module name puts them into the test
//! group `heavy`, of which the test runner runs one test at a time.

mod bombs;
mod memory;
mod race;

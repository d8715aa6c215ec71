//! The conformance suite: real sandboxes on this machine, created as root by the real runtime. Every test of execs
//! and files runs in a template of one static binary as well as in `base`.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    unreachable_pub,
    reason = "a test fails where something is not as it should be"
)]

mod api;
mod attacks;
mod authorities;
mod cli;
mod client;
mod disk;
mod docs;
mod e2b;
mod exec;
mod files;
mod harness;
mod lifecycle;
mod limits;
mod mcp;
mod network;
mod packages;
mod powercut;
mod restart;
mod sdk;
mod terminal;
mod unresponsive;
mod watch;

//! E2B's interface, as its unmodified SDKs speak it: a translation at the edge over the same core.
//!
//! ```text
//! /e2b/…                            control: sandboxes by key                     control
//! E2b-Sandbox-Id, or Host PORT-ID.DOMAIN, or a signed /files
//!       port 49983                  commands and files by the sandbox's token     envd
//!       any other port              what listens there                            ports
//! ```
//!
//! No route of our own changes its answer because a client looks like E2B. Facts that the SDKs rely on stand where
//! they are met.

mod connect_rpc;
mod control;
mod envd;
mod error;
mod lenient;
mod ports;
mod router;

pub(crate) use control::routes as control;
pub(crate) use router::{ENVD, LINK, SandboxRouter, route_to_sandbox};

//! E2B's interface for its unmodified SDKs: a translation layer over the same core.
//!
//! ```text
//! /e2b/…                            control API: sandboxes, by API key               control
//! E2b-Sandbox-Id, or Host PORT-ID.DOMAIN, or a signed /files
//!       port 49983                  envd: commands and files, by access token        envd
//!       any other port              reverse proxy to the port                        ports
//! ```
//!
//! Routes of the Atoll API do not behave differently for E2B clients. Comments name the SDK
//! behaviour that a detail depends on.

mod connect_rpc;
mod control;
mod envd;
mod error;
mod lenient;
mod ports;
mod router;

pub(crate) use control::routes as control;
pub(crate) use router::{ENVD, LINK, SandboxRouter, route_to_sandbox};

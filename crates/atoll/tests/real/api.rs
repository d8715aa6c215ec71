//! The API, asked over HTTP of the binary that users run. Answers to single requests are in `api/cases.txt`.

mod access;
mod backup;
mod cases;
mod client;
mod connections;
mod lasting;
mod lifetimes;
mod operating;
mod quota;
mod sockets;
mod tls;

pub use client::{Client, Server};

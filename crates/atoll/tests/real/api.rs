//! The API, asked over HTTP of the binary that users run. Answers to single requests are in `api/cases.txt`.

mod access;
mod cases;
mod client;
mod document;
mod lasting;
mod lifetimes;
mod sockets;

pub use client::{Client, Server};

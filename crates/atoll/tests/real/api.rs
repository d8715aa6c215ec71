//! The API, asked over HTTP of the binary that users run. Answers to single requests are in `api/cases.txt`.

mod access;
mod browser;
mod cases;
mod chromium;
mod client;
mod document;
mod fuzz;
mod lasting;
mod lifetimes;
mod sockets;

pub use client::{Client, Server};

//! The API, asked over HTTP of the binary that users run. Answers to single requests are in `api/cases.txt`.

mod access;
mod archives;
mod cases;
mod client;
mod cut;
mod history;
mod lasting;
mod lifetimes;
mod links;
mod logs;
mod places;
mod pressure;
mod soak;
mod sockets;
mod templates;
mod tunnels;
mod watching;

pub use client::{Client, Server};

//! The API, asked over HTTP of the binary that users run. Answers to single requests are in `api/cases.txt`.

mod access;
mod archives;
mod backup;
mod browser;
mod cases;
mod chromium;
mod client;
mod connections;
mod cut;
mod document;
mod frames;
mod fuzz;
mod history;
mod http2;
mod keys;
mod lasting;
mod lifetimes;
mod links;
mod logs;
mod operating;
mod pages;
mod places;
mod pressure;
mod quota;
mod soak;
mod sockets;
mod states;
mod taken;
mod templates;
mod tls;
mod transfers;
mod traps;
mod tunnels;
mod watching;

pub use chromium::{Chromium, serve};
pub use client::{Answer, Client, Server};

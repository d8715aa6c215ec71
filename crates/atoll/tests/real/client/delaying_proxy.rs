//! A proxy that delays the first request that contains a given text. All others pass.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use atoll_testkit::wait_for;

use crate::harness::DEADLINE;

/// A proxy in front of a server.
pub struct Holder {
    address: SocketAddr,
    gate: Arc<Gate>,
}

/// State of the held request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Awaited,
    Held,
    Passed,
    Lost,
}

struct Gate {
    words: &'static str,
    state: Mutex<State>,
    changed: Condvar,
}

impl Holder {
    pub fn new(server: &str, words: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let gate = Arc::new(Gate {
            words,
            state: Mutex::new(State::Awaited),
            changed: Condvar::new(),
        });
        let (server, held) = (server.to_owned(), Arc::clone(&gate));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let there = TcpStream::connect(&server).unwrap();
                let (back, to) = (client.try_clone().unwrap(), there.try_clone().unwrap());
                let gate = Arc::clone(&held);
                std::thread::spawn(move || copy(client, to, Some(&gate)));
                std::thread::spawn(move || copy(there, back, None));
            }
        });
        Self { address, gate }
    }

    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Waits until the request has arrived and is held.
    #[track_caller]
    pub fn until_held(&self) {
        wait_for(self.gate.words, DEADLINE, || {
            *self.gate.state.lock().unwrap() == State::Held
        });
    }

    /// Lets it pass.
    pub fn release(&self) {
        self.gate.change(State::Passed);
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.gate.change(State::Lost);
    }
}

impl Gate {
    fn change(&self, to: State) {
        *self.state.lock().unwrap() = to;
        self.changed.notify_all();
    }

    /// Whether these bytes go on, once that is decided.
    fn passes(&self, bytes: &[u8]) -> bool {
        let mut state = self.state.lock().unwrap();
        if *state != State::Awaited || !String::from_utf8_lossy(bytes).contains(self.words) {
            return true;
        }
        *state = State::Held;
        while *state == State::Held {
            state = self.changed.wait(state).unwrap();
        }
        *state == State::Passed
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, gate: Option<&Gate>) {
    let mut buffer = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let passes = gate.is_none_or(|gate| gate.passes(&buffer[..count]));
        if !passes || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

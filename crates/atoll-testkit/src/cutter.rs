//! A faulty network connection: a proxy that cuts each connection after a random number of bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// A proxy in front of a server. It ends with this value.
#[derive(Debug)]
pub struct Cutter {
    address: SocketAddr,
    cuts: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Cutter {
    /// Stands in front of `server`. Where it cuts follows from the seed.
    pub fn new(server: &str, seed: u64) -> Self {
        Self::start(server, seed, false)
    }

    /// Creates a proxy that cuts every other connection within the first bytes, so that short requests are cut too.
    pub fn hasty(server: &str, seed: u64) -> Self {
        Self::start(server, seed, true)
    }

    fn start(server: &str, seed: u64, hasty: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("the port");
        let (cuts, over) = (
            Arc::new(AtomicU64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let server = server.to_owned();
        let accepting = {
            let (cuts, over) = (Arc::clone(&cuts), Arc::clone(&over));
            std::thread::spawn(move || {
                let mut random = seed.wrapping_mul(2).wrapping_add(1);
                let mut short = false;
                for client in listener.incoming() {
                    if over.load(Ordering::SeqCst) {
                        return;
                    }
                    let (Ok(client), Ok(server)) = (client, TcpStream::connect(&server)) else {
                        continue;
                    };
                    random = random
                        .wrapping_mul(0x5851_f42d_4c95_7f2d)
                        .wrapping_add(0x1405_7b7e);
                    // From a part of a head to some hundred kilobytes, each size as likely as its double.
                    let doublings = 8 + (random >> 59) % 12;
                    let mut most =
                        (1_i64 << doublings) + ((random >> 20) % (1 << doublings)) as i64;
                    short = hasty && !short;
                    if short {
                        most = most % 1000 + 1;
                    }
                    join(client, server, most, &cuts);
                }
            })
        };
        Self {
            address,
            cuts,
            over,
            accepting: Some(accepting),
        }
    }

    /// The listening address.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Number of cut connections.
    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::SeqCst)
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        // Wakes it.
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

/// Copies both ways until `most` bytes have passed, then cuts both.
fn join(client: TcpStream, server: TcpStream, most: i64, cuts: &Arc<AtomicU64>) {
    let left = Arc::new(AtomicI64::new(most));
    let ways = [
        (client.try_clone(), server.try_clone()),
        (Ok(server), Ok(client)),
    ];
    for (from, to) in ways {
        let (Ok(from), Ok(to)) = (from, to) else {
            return;
        };
        let (left, cuts) = (Arc::clone(&left), Arc::clone(cuts));
        std::thread::spawn(move || copy(from, to, &left, &cuts));
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, left: &AtomicI64, cuts: &AtomicU64) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let before = left.fetch_sub(count as i64, Ordering::SeqCst);
        let allowed = before.clamp(0, count as i64) as usize;
        if to.write_all(&buffer[..allowed]).is_err() {
            break;
        }
        if allowed < count {
            // The other way may have cut already.
            cuts.fetch_add(u64::from(before > 0), Ordering::SeqCst);
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

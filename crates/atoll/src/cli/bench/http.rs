//! The same figures over HTTP on loopback, with `atoll serve` in its default configuration.

mod client;
mod commands;

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use atoll_model::Error;
use futures_util::StreamExt as _;
use tokio_tungstenite::tungstenite::Message;

use super::serving::{Data, flatten_join};
use super::{Bench, Row, Samples, failed, milliseconds, progress};
use crate::config::Config;
use client::{Connection, Server, commands_path, download, server_error, upload};

/// Concurrent connections.
const CONNECTIONS: usize = 32;
/// Time for which a rate is measured.
const RATE_TIME: Duration = Duration::from_secs(4);
/// Parts of that time, if another rate is measured in turn.
const ROUNDS: u32 = 4;
/// Bytes of a large stream.
const GIGABYTE: u64 = 1_000_000_000;

/// Measures the selected rows.
pub(super) async fn measure(config: &Config, bench: &Bench) -> Result<Vec<Row>, Error> {
    let names = [
        "http-memory",
        "http-warm",
        "http-burst",
        "http-command",
        "http-rate",
        "http-get",
        "http-stream",
        "http-transfer",
        "http-restart",
        "client-exec",
        "client-copy",
        "http-thousand",
    ];
    if !names.iter().any(|name| bench.wants(name)) {
        return Ok(Vec::new());
    }
    let data = Data::new(config);
    let mut server = Server::start(config, data.path())?;
    let mut rows = Vec::new();
    if bench.wants("http-memory") {
        rows.push(idle_memory(&server).await?);
    }
    if bench.wants("http-warm") {
        rows.push(warm(&server).await?);
    }
    if bench.wants("http-burst") {
        rows.push(burst(&server).await?);
    }
    if bench.wants("http-command") {
        rows.push(command(&server).await?);
    }
    if bench.wants("http-rate") {
        rows.push(rate(&server).await?);
    }
    if bench.wants("http-get") {
        rows.push(get(&server).await?);
    }
    if bench.wants("http-stream") {
        rows.push(stream(&server).await?);
    }
    if bench.wants("http-transfer") {
        rows.extend(transfer(&server, data.path()).await?);
    }
    if bench.wants("http-restart") {
        rows.extend(restart(&mut server).await?);
    }
    if bench.wants("client-exec") {
        rows.push(commands::exec(&server).await?);
    }
    if bench.wants("client-copy") {
        rows.push(commands::copy(&server, data.path()).await?);
    }
    if bench.wants("http-thousand") {
        rows.push(thousand(&server).await?);
    }
    server.close().await?;
    Ok(rows)
}

async fn idle_memory(server: &Server) -> Result<Row, Error> {
    progress("the server's memory");
    server.connect().await?.wait_for_pools(16, 96).await?;
    let megabytes = server.resident() as f64 / 1024.0;
    let row = Row::value(
        "memory of an idle server, its pool full",
        format!("{megabytes:.0} MB"),
    );
    Ok(row.bar("≤ 40 MB", megabytes <= 40.0))
}

async fn warm(server: &Server) -> Result<Row, Error> {
    progress("POST /sandboxes → first command's result");
    let mut connection = server.connect().await?;
    let mut samples = Samples::default();
    for round in 0..200 {
        if round % 8 == 0 {
            connection.wait_for_pools(16, 96).await?;
        }
        let begin = Instant::now();
        let id = connection.create().await?;
        connection.run_true(&id).await?;
        samples.add(begin);
        connection.delete(&id).await?;
    }
    let row = "POST /sandboxes → first command's result, warm";
    Ok(Row::times(row, &samples, Some((4.0, Some(10.0)))))
}

async fn burst(server: &Server) -> Result<Row, Error> {
    progress("100 creates over HTTP at once");
    let mut samples = Samples::default();
    for _ in 0..3 {
        server.connect().await?.wait_for_pools(16, 96).await?;
        let mut connections = Vec::new();
        for _ in 0..100 {
            connections.push(server.connect().await?);
        }
        let begin = Instant::now();
        let all: Vec<_> = connections
            .into_iter()
            .map(|mut connection| {
                tokio::spawn(async move {
                    let id = connection.create().await?;
                    connection.run_true(&id).await?;
                    Ok::<_, Error>((connection, id, begin.elapsed()))
                })
            })
            .collect();
        for one in all {
            let (mut connection, id, elapsed) = flatten_join(one.await)?;
            samples.0.push(elapsed);
            connection.delete(&id).await?;
        }
    }
    let p99 = milliseconds(samples.percentile(99.0));
    let row = Row::times("100 such at once", &samples, None);
    Ok(row.bar("p99 ≤ 350", p99 <= 350.0))
}

async fn command(server: &Server) -> Result<Row, Error> {
    progress("POST …/commands");
    let mut connection = server.connect().await?;
    let id = connection.create().await?;
    super::settle();
    let mut samples = Samples::default();
    for _ in 0..500 {
        let begin = Instant::now();
        connection.run_true(&id).await?;
        samples.add(begin);
    }
    connection.delete(&id).await?;
    let row = "POST …/commands of /bin/true";
    Ok(Row::times(row, &samples, Some((1.8, Some(5.0)))))
}

/// Operations per second of all connections together.
async fn throughput(
    connections: &mut [Connection],
    length: Duration,
    work: impl AsyncFn(&mut Connection) -> Result<(), Error>,
) -> Result<f64, Error> {
    let begin = Instant::now();
    let all = connections.iter_mut().map(async |connection| {
        let mut count = 0_u64;
        while begin.elapsed() < length {
            work(connection).await?;
            count += 1;
        }
        Ok::<_, Error>(count)
    });
    let counts = futures_util::future::try_join_all(all).await?;
    let total: u64 = counts.into_iter().sum();
    Ok(total as f64 / begin.elapsed().as_secs_f64())
}

async fn connect_all(server: &Server) -> Result<Vec<Connection>, Error> {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(server.connect().await?);
    }
    Ok(connections)
}

async fn rate(server: &Server) -> Result<Row, Error> {
    progress("commands a second over 50 sandboxes");
    let mut connection = server.connect().await?;
    let mut ids = Vec::new();
    for _ in 0..50 {
        ids.push(connection.create().await?);
    }
    let mut connections = connect_all(server).await?;
    super::settle();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let (mut floor, mut rate) = (0.0, 0.0);
    // In turns, because the speed of a machine varies.
    for _ in 0..ROUNDS {
        let forks = tokio::task::spawn_blocking(|| forks(RATE_TIME / ROUNDS));
        floor += forks
            .await
            .map_err(|error| server_error(&error.to_string()))?
            / f64::from(ROUNDS);
        let round = throughput(&mut connections, RATE_TIME / ROUNDS, async |connection| {
            let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            match ids.get(number % ids.len()) {
                Some(id) => connection.run_true(id).await,
                None => Ok(()),
            }
        });
        rate += round.await? / f64::from(ROUNDS);
    }
    for id in ids {
        connection.delete(&id).await?;
    }
    let share = rate / floor;
    let text = format!(
        "commands a second, 50 sandboxes, {CONNECTIONS} connections (fork + exec on all processors: {floor:.0})"
    );
    let row = Row::value(text, format!("{rate:.0} /s"));
    Ok(row.bar(format!("≥ 0.45 of the floor ({share:.2})"), share >= 0.45))
}

/// Processes per second that all processors together can start.
fn forks(length: Duration) -> f64 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let begin = Instant::now();
    let threads: Vec<_> = (0..processors)
        .map(|_| {
            std::thread::spawn(move || {
                let mut count = 0_u32;
                while begin.elapsed() < length {
                    let status = Command::new("/bin/true").stdin(Stdio::null()).status();
                    count += u32::from(status.is_ok());
                }
                count
            })
        })
        .collect();
    let total: u32 = threads.into_iter().filter_map(|one| one.join().ok()).sum();
    f64::from(total) / begin.elapsed().as_secs_f64()
}

async fn get(server: &Server) -> Result<Row, Error> {
    progress("GET /sandboxes/{id}");
    let mut connection = server.connect().await?;
    let id = connection.create().await?;
    let request = connection.request("GET", &format!("/sandboxes/{id}"), "");
    let mut connections = connect_all(server).await?;
    let rate = throughput(&mut connections, RATE_TIME, async |connection| {
        connection.exchange(&request).await.map(|_| ())
    });
    let rate = rate.await?;
    connection.delete(&id).await?;
    let row = Row::value(
        "GET /sandboxes/{id}, beside its callers",
        format!("{rate:.0} /s"),
    );
    Ok(row.bar("≥ 10000 /s", rate >= 10_000.0))
}

/// Reads the output of a command from a byte offset until the command or the connection ends. True if the command ended.
async fn output(
    address: &str,
    path: &str,
    after: usize,
    mut receive: impl FnMut(&[u8]),
) -> Result<bool, Error> {
    let url = format!("ws://{address}{path}/output?after={after}");
    let opened = tokio_tungstenite::connect_async(url).await;
    let (mut socket, _) = opened.map_err(|error| server_error(&error.to_string()))?;
    while let Some(Ok(message)) = socket.next().await {
        if let Message::Binary(frame) = message {
            match frame.split_first() {
                Some((1, bytes)) => receive(bytes),
                Some((3, _)) => return Ok(true),
                _ => {}
            }
        }
    }
    Ok(false)
}

async fn stream(server: &Server) -> Result<Row, Error> {
    progress("1 GB of stdout over a WebSocket");
    let mut connection = server.connect().await?;
    let id = connection.create().await?;
    let before = server.resident();
    let begin = Instant::now();
    let exec = connection
        .start(&id, "head -c 1000000000 /dev/zero")
        .await?;
    let path = format!("{}/{exec}", commands_path(&id));
    let mut received = 0_u64;
    output(&server.address, &path, 0, |bytes| {
        received += bytes.len() as u64;
    })
    .await?;
    let rate = received as f64 / 1e6 / begin.elapsed().as_secs_f64();
    let grown = server.resident().saturating_sub(before) / 1024;
    connection.delete(&id).await?;
    let text = format!("1 GB of stdout over a WebSocket (the server grew by {grown} MB)");
    let met = rate >= 200.0 && received == GIGABYTE && grown < 64;
    Ok(Row::value(text, format!("{rate:.0} MB/s")).bar("≥ 200 MB/s", met))
}

async fn transfer(server: &Server, data: &Path) -> Result<Vec<Row>, Error> {
    progress("a file of 1 GB over HTTP");
    let directory = data.join("transfer");
    std::fs::create_dir_all(&directory).map_err(|error| failed("make a directory", &error))?;
    super::work::on_host(&directory, "head -c 1000000000 /dev/urandom > big")?;
    let mut filler = super::work::Filler::new(&directory);
    let (mut copy, mut uploads, mut downloads) =
        (Samples::default(), Samples::default(), Samples::default());
    let mut connection = server.connect().await?;
    let before = server.resident();
    for _ in 0..3 {
        let id = connection.create().await?;
        let path = format!("/sandboxes/{id}/files?path=big");
        filler.free(&directory.join("copy"))?;
        let begin = Instant::now();
        super::work::on_host(&directory, "cp big copy")?;
        copy.add(begin);
        filler.free(&directory.join("copy"))?;
        let begin = Instant::now();
        let big = File::open(directory.join("big"));
        let sent = big.and_then(|big| upload(&server.address, &path, &big));
        sent.map_err(|error| failed("send a file up", &error))?;
        uploads.add(begin);
        filler.free(&directory.join("back"))?;
        let begin = Instant::now();
        let written = File::create(directory.join("back"))
            .and_then(|back| download(&server.address, &path, &back));
        written.map_err(|error| failed("take a file down", &error))?;
        downloads.add(begin);
        super::work::on_host(&directory, "cmp big back && rm -f back")?;
        connection.delete(&id).await?;
    }
    let grown = server.resident().saturating_sub(before) / 1024;
    Ok(vec![
        super::work::compare("1 GB up over HTTP, against cp", &uploads, &copy, 0.3),
        super::work::compare("1 GB down over HTTP, against cp", &downloads, &copy, 0.3),
        Row::value("    the server grew by", format!("{grown} MB")).bar("< 32 MB", grown < 32),
    ])
}

/// Kills the server while it has 100 sandboxes and 20 open streams, and starts it again.
async fn restart(server: &mut Server) -> Result<Vec<Row>, Error> {
    progress("a restart with 100 sandboxes and 20 streams");
    const STREAMS: usize = 20;
    const LINES: usize = 400;
    let mut connection = server.connect().await?;
    let mut ids = Vec::new();
    for _ in 0..100 {
        ids.push(connection.create().await?);
    }
    let line = format!("i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); echo $i; sleep 0.01; done");
    let mut paths = Vec::new();
    for id in ids.iter().take(STREAMS) {
        let exec = connection.start(id, &line).await?;
        paths.push(format!("{}/{exec}", commands_path(id)));
    }
    let listen = async |address: String, received: Vec<Vec<u8>>| {
        let all = paths.iter().zip(received).map(|(path, mut received)| {
            let (address, path) = (address.clone(), path.clone());
            tokio::spawn(async move {
                let after = received.len();
                let ended = output(&address, &path, after, |bytes| {
                    received.extend_from_slice(bytes);
                });
                let ended = ended.await?;
                Ok::<_, Error>((received, ended))
            })
        });
        let all: Vec<_> = all.collect();
        let mut received = Vec::new();
        let mut over = 0;
        for one in all {
            let (bytes, ended) = flatten_join(one.await)?;
            over += usize::from(ended);
            received.push(bytes);
        }
        Ok::<_, Error>((received, over))
    };
    let first = listen(server.address.clone(), vec![Vec::new(); STREAMS]);
    let (received, killed) = tokio::join!(first, async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.kill()
    });
    killed?;
    let (received, _) = received?;
    let begin = Instant::now();
    server.restart()?;
    let mut connection = server.connect().await?;
    connection.call("GET", "/readyz", "").await?;
    for id in &ids {
        let path = format!("/sandboxes/{id}");
        let sandbox = connection.call("GET", &path, "").await?;
        if client::text(&sandbox, "state")? != "running" {
            return Err(server_error(&format!("{id} was not adopted: {sandbox}")));
        }
    }
    let adopted = begin.elapsed();
    let (received, _) = listen(server.address.clone(), received).await?;
    let lines: Vec<_> = (1..=LINES).map(|number| number.to_string()).collect();
    let expected = lines.join("\n") + "\n";
    let whole = received
        .iter()
        .filter(|bytes| **bytes == expected.as_bytes());
    let whole = whole.count();
    for id in ids {
        connection.delete(&id).await?;
    }
    let seconds = adopted.as_secs_f64();
    Ok(vec![
        Row::value(
            "restart after kill -9 with 100 sandboxes: all answer again",
            format!("{seconds:.2} s"),
        )
        .bar("≤ 1 s", seconds <= 1.0),
        Row::value(
            format!("    of {STREAMS} streams resumed without gap or duplicate"),
            whole.to_string(),
        )
        .bar(format!("{STREAMS}"), whole == STREAMS),
    ])
}

async fn thousand(server: &Server) -> Result<Row, Error> {
    progress("the server's memory with 1,000 sandboxes");
    const COUNT: usize = 1000;
    let all: Vec<_> = connect_all(server)
        .await?
        .into_iter()
        .enumerate()
        .map(|(number, mut connection)| {
            let share = COUNT / CONNECTIONS + usize::from(number < COUNT % CONNECTIONS);
            tokio::spawn(async move {
                for _ in 0..share {
                    let id = connection.create().await?;
                    connection.run_true(&id).await?;
                }
                Ok::<_, Error>(())
            })
        })
        .collect();
    for one in all {
        flatten_join(one.await)?;
    }
    let megabytes = server.resident() as f64 / 1024.0;
    let row = Row::value(
        "memory of the server with 1,000 sandboxes, each used once",
        format!("{megabytes:.0} MB"),
    );
    Ok(row.bar("≤ 150 MB", megabytes <= 150.0))
}

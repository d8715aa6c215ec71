//! The command line as a client: time of the whole process.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use atoll_model::Error;

use super::super::work::{compare, on_host};
use super::super::{Row, Samples, failed, progress};
use super::client::{Server, server_error};

/// Runs this binary against the server.
fn atoll(server: &Server, words: &[&str]) -> Result<(), Error> {
    let status = Command::new("/proc/self/exe")
        .args(words)
        .env("ATOLL_URL", format!("http://{}", server.address))
        .env_remove("ATOLL_API_KEY")
        .stdin(Stdio::null())
        .status();
    let status = status.map_err(|error| failed("run atoll", &error))?;
    if status.success() {
        return Ok(());
    }
    Err(server_error(&format!(
        "atoll {}: {status}",
        words.join(" ")
    )))
}

pub(super) async fn exec(server: &Server) -> Result<Row, Error> {
    progress("atoll exec ID true");
    let mut connection = server.connect().await?;
    let id = connection.create().await?;
    let mut samples = Samples::default();
    for _ in 0..200 {
        let begin = Instant::now();
        atoll(server, &["exec", &id, "true"])?;
        samples.add(begin);
    }
    connection.delete(&id).await?;
    let row = "atoll exec ID true, process start to exit";
    Ok(Row::times(row, &samples, Some((12.0, None))))
}

/// `atoll cp` of 10,000 files of 10 kB, compared with `cp -r` on the file system of the data directory.
pub(super) async fn copy(server: &Server, data: &Path) -> Result<Row, Error> {
    progress("atoll cp of 10,000 small files");
    let directory = data.join("copies");
    let many = directory.join("many");
    for outer in 0..100 {
        let below = many.join(outer.to_string());
        std::fs::create_dir_all(&below).map_err(|error| failed("make a directory", &error))?;
        for inner in 0..100 {
            let written = std::fs::write(below.join(inner.to_string()), [outer; 10_000]);
            written.map_err(|error| failed("write a file", &error))?;
        }
    }
    let (mut copies, mut host_copies) = (Samples::default(), Samples::default());
    let mut connection = server.connect().await?;
    for _ in 0..5 {
        let id = connection.create().await?;
        on_host(&directory, "rm -rf copy && sync -f .")?;
        let begin = Instant::now();
        on_host(&directory, "cp -r many copy")?;
        host_copies.add(begin);
        on_host(&directory, "rm -rf copy && sync -f .")?;
        let begin = Instant::now();
        let target = format!("{id}:many");
        atoll(server, &["cp", &many.to_string_lossy(), &target])?;
        copies.add(begin);
        connection.delete(&id).await?;
    }
    on_host(&directory, "rm -rf many")?;
    let row = "atoll cp of 10,000 files of 10 kB in, against cp -r";
    Ok(compare(row, &copies, &host_copies, 0.5))
}

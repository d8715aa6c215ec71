//! The command as a client: what a whole process costs its user.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use atoll_model::Error;

use super::super::work::{compare, on_host};
use super::super::{Row, Samples, failed, progress};
use super::client::{Server, wrong};

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
    Err(wrong(&format!("atoll {}: {status}", words.join(" "))))
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

/// 10,000 files of 10 kB in, against `cp -r` beside the data directory.
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
    let (mut there, mut here) = (Samples::default(), Samples::default());
    let mut connection = server.connect().await?;
    for _ in 0..5 {
        let id = connection.create().await?;
        on_host(&directory, "rm -rf copy && sync -f .")?;
        let begin = Instant::now();
        on_host(&directory, "cp -r many copy")?;
        here.add(begin);
        on_host(&directory, "rm -rf copy && sync -f .")?;
        let begin = Instant::now();
        let target = format!("{id}:many");
        atoll(server, &["cp", &many.to_string_lossy(), &target])?;
        there.add(begin);
        connection.delete(&id).await?;
    }
    on_host(&directory, "rm -rf many")?;
    let row = "atoll cp of 10,000 files of 10 kB in, against cp -r";
    Ok(compare(row, &there, &here, 0.5))
}

//! A server process for the benchmark, and a minimal HTTP client: client and server share the processors, and only the
//! server is to be measured.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use atoll_model::{Code, Error};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::cli::bench::{failed, latency};
use crate::config::Config;

/// `atoll serve` with its default configuration, on a free port.
pub(super) struct Server {
    child: Child,
    data: PathBuf,
    templates: PathBuf,
    pub(super) address: String,
}

impl Server {
    pub(super) fn start(config: &Config, data: &Path) -> Result<Self, Error> {
        let (data, templates) = (data.to_owned(), config.templates());
        let (child, address) = spawn(&data, &templates)?;
        Ok(Self {
            child,
            data,
            templates,
            address,
        })
    }

    pub(super) fn kill(&mut self) -> Result<(), Error> {
        let killed = self.child.kill().and_then(|()| self.child.wait());
        killed.map_err(|error| failed("kill the server", &error))?;
        Ok(())
    }

    /// Starts a new process with the same data directory.
    pub(super) fn restart(&mut self) -> Result<(), Error> {
        (self.child, self.address) = spawn(&self.data, &self.templates)?;
        Ok(())
    }

    /// Resident memory in kB.
    pub(super) fn resident(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        latency::kilobytes(&path, "VmRSS:")
    }

    pub(super) async fn connect(&self) -> Result<Connection, Error> {
        Connection::open(&self.address).await
    }

    /// Deletes all sandboxes and ends the server.
    pub(super) async fn close(mut self) -> Result<(), Error> {
        let mut connection = self.connect().await?;
        loop {
            let all = connection.call("GET", "/sandboxes", "").await?;
            let ids = all.as_array().map(Vec::as_slice).unwrap_or_default();
            if ids.is_empty() {
                break;
            }
            for sandbox in ids {
                connection.delete(text(sandbox, "sandboxID")?).await?;
            }
        }
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let ended = self.child.wait();
        ended.map_err(|error| failed("end the server", &error))?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(data: &Path, templates: &Path) -> Result<(Child, String), Error> {
    let mut child = Command::new("/proc/self/exe")
        .args(["serve", "--dev", "--listen", "127.0.0.1:0"])
        .args(["--metrics-listen", "off", "--data-dir"])
        .arg(data)
        .env("ATOLL_TEMPLATES_DIR", templates)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed("start a server", &error))?;
    let lines = child
        .stdout
        .take()
        .map(|stdout| BufReader::new(stdout).lines());
    let address = lines.into_iter().flatten().map_while(Result::ok);
    let address = address.into_iter().find_map(|line| {
        let url = line.strip_prefix("serving")?.trim();
        Some(url.strip_prefix("http://")?.to_owned())
    });
    match address {
        Some(address) => Ok((child, address)),
        None => Err(server_error("the server did not start")),
    }
}

/// A keep-alive connection.
pub(super) struct Connection {
    address: String,
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    async fn open(address: &str) -> Result<Self, Error> {
        let stream = TcpStream::connect(address).await.and_then(|stream| {
            stream.set_nodelay(true)?;
            Ok(stream)
        });
        Ok(Self {
            address: address.to_owned(),
            stream: stream.map_err(|error| failed("connect", &error))?,
            buffer: Vec::with_capacity(16 << 10),
        })
    }

    /// Sends a request and returns the decoded body of the response.
    pub(super) async fn call(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<Value, Error> {
        let request = self.request(method, path, body);
        let body = self.exchange(&request).await?;
        if body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(body).map_err(|error| server_error(&error.to_string()))
    }

    /// Bytes of a request.
    pub(super) fn request(&self, method: &str, path: &str, body: &str) -> Vec<u8> {
        let (address, length) = (&self.address, body.len());
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        head.into_bytes()
    }

    /// Sends a request and returns the body of the response. A status other than 2xx is an error.
    pub(super) async fn exchange(&mut self, request: &[u8]) -> Result<&[u8], Error> {
        let done = async {
            self.stream.write_all(request).await?;
            self.buffer.clear();
            loop {
                if let Some(response) = ResponseHead::parse(&self.buffer)
                    && self.buffer.len() >= response.end()
                {
                    return Ok(response);
                }
                if self.stream.read_buf(&mut self.buffer).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        };
        let response = done
            .await
            .map_err(|error| failed("call the server", &error))?;
        let body = self.buffer.get(response.head..).unwrap_or_default();
        if !(200..300).contains(&response.status) {
            return Err(server_error(&String::from_utf8_lossy(body)));
        }
        Ok(body)
    }

    /// Creates a sandbox and returns its id.
    pub(super) async fn create(&mut self) -> Result<String, Error> {
        let created = self.call("POST", "/sandboxes", r#"{"timeout":0}"#).await?;
        text(&created, "sandboxID").map(ToOwned::to_owned)
    }

    pub(super) async fn delete(&mut self, id: &str) -> Result<(), Error> {
        self.call("DELETE", &format!("/sandboxes/{id}"), "").await?;
        Ok(())
    }

    /// Runs `/bin/true` and waits for its exit.
    pub(super) async fn run_true(&mut self, id: &str) -> Result<(), Error> {
        let body = r#"{"cmd":"/bin/true","args":[]}"#;
        let done = self.call("POST", &commands_path(id), body).await?;
        if done.get("exitCode").and_then(Value::as_i64) == Some(0) {
            return Ok(());
        }
        Err(server_error(&done.to_string()))
    }

    /// Starts a command in the background and returns its id.
    pub(super) async fn start(&mut self, id: &str, line: &str) -> Result<String, Error> {
        let body = serde_json::json!({ "cmd": line, "background": true }).to_string();
        let started = self.call("POST", &commands_path(id), &body).await?;
        text(&started, "execID").map(ToOwned::to_owned)
    }

    /// Waits until the pools have this many warm sandboxes and embryos.
    pub(super) async fn wait_for_pools(&mut self, warm: u64, embryos: u64) -> Result<(), Error> {
        let begin = std::time::Instant::now();
        loop {
            let ready = self.call("GET", "/readyz", "").await?;
            let count = |name| ready["pool"][name].as_u64().unwrap_or(0);
            if count("warm") >= warm && count("embryos") >= embryos {
                return Ok(());
            }
            if begin.elapsed().as_secs() > 60 {
                return Err(server_error("the pool did not fill"));
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
}

pub(super) fn commands_path(id: &str) -> String {
    format!("/sandboxes/{id}/commands")
}

/// A string field.
pub(super) fn text<'a>(value: &'a Value, name: &str) -> Result<&'a str, Error> {
    let found = value.get(name).and_then(Value::as_str);
    found.ok_or_else(|| server_error(&format!("no {name} in {value}")))
}

/// The head of a response.
struct ResponseHead {
    status: u16,
    head: usize,
    length: usize,
}

impl ResponseHead {
    /// Parses the head; `None` if it is incomplete. All measured routes send Content-Length.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let head = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
        let text = std::str::from_utf8(bytes.get(..head)?).ok()?;
        let mut lines = text.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let length = lines.find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse().ok())?
        });
        Some(Self {
            status,
            head,
            length: length.unwrap_or(0),
        })
    }

    fn end(&self) -> usize {
        self.head + self.length
    }
}

/// Uploads a file by `sendfile`.
pub(super) fn upload(address: &str, path: &str, file: &File) -> io::Result<()> {
    let length = file.metadata()?.len();
    let mut stream = std::net::TcpStream::connect(address)?;
    write!(
        stream,
        "PUT {path} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    )?;
    let mut left = length;
    while left > 0 {
        let size = usize::try_from(left).unwrap_or(usize::MAX).min(1 << 30);
        match rustix::fs::sendfile(&stream, file, None, size)? {
            0 => return Err(io::Error::other("the file became shorter")),
            sent => left -= sent as u64,
        }
    }
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    let is_success = response
        .split(' ')
        .nth(1)
        .is_some_and(|status| status.starts_with('2'));
    if is_success {
        Ok(())
    } else {
        Err(io::Error::other(response))
    }
}

/// Downloads a file by `splice`.
pub(super) fn download(address: &str, path: &str, file: &File) -> io::Result<()> {
    let mut stream = std::net::TcpStream::connect(address)?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"
    )?;
    // Reads the head byte by byte, so that the body stays in the socket for `splice`.
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.extend_from_slice(&byte);
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    if !head.starts_with("http/1.1 200") || head.contains("transfer-encoding") {
        return Err(io::Error::other(head));
    }
    const PIPE_BYTES: usize = 1 << 20;
    let (reader, writer) = rustix::pipe::pipe()?;
    rustix::pipe::fcntl_setpipe_size(&writer, PIPE_BYTES)?;
    let flags = rustix::pipe::SpliceFlags::MOVE;
    loop {
        let mut left = rustix::pipe::splice(&stream, None, &writer, None, PIPE_BYTES, flags)?;
        if left == 0 {
            return Ok(());
        }
        while left > 0 {
            left -= rustix::pipe::splice(&reader, None, file, None, left, flags)?;
        }
    }
}

pub(super) fn server_error(message: &str) -> Error {
    Error::new(Code::Internal, format!("the server: {message}"))
}

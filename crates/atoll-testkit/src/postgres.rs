//! A PostgreSQL server for tests.
//!
//! The server of `deploy/with-postgres`, whose URL is in `ATOLL_TEST_POSTGRES`, serves all tests that do not harm it. A
//! test without that server, or one that kills it, starts its own. The program refuses to run as root, so it runs as
//! `postgres`.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// URL of a server that tests share, without a database: `postgres://USER@HOST:PORT`.
const SHARED: &str = "ATOLL_TEST_POSTGRES";
const START_TIMEOUT: Duration = Duration::from_mins(1);
/// User with all rights, without a password.
const USER: &str = "atoll";

/// Whether the server writes to the disk before it acknowledges a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// As in production.
    Synced,
    /// Faster, for tests that kill nothing.
    Unsynced,
}

/// A running server, which is ended and removed when dropped.
#[derive(Debug)]
pub struct Postgres {
    /// Removes the files. `None` if the caller named the directory.
    temporary: Option<TempDir>,
    directory: PathBuf,
    port: u16,
    settings: Vec<String>,
    server: Option<Child>,
}

/// An empty database, on the shared server or on one of its own.
#[derive(Debug)]
pub struct PostgresDatabase {
    /// URL of the database.
    pub url: String,
    server: Option<Postgres>,
}

impl PostgresDatabase {
    /// Creates a database.
    #[allow(clippy::new_without_default, reason = "it creates a database")]
    pub fn new() -> Self {
        if let Ok(shared) = std::env::var(SHARED) {
            return Self {
                url: create_database(&shared),
                server: None,
            };
        }
        let server = Postgres::start(Durability::Unsynced, &[]);
        Self {
            url: server.database(),
            server: Some(server),
        }
    }

    /// A database that exists already.
    pub fn existing(url: String) -> Self {
        Self { url, server: None }
    }

    /// Creates another database on the same server.
    pub fn sibling(&self) -> String {
        match &self.server {
            Some(server) => server.database(),
            None => create_database(&self.server_url()),
        }
    }

    /// Executes statements.
    pub fn execute(&self, sql: &str) {
        execute(&self.url, sql);
    }

    fn server_url(&self) -> String {
        let end = self.url.rfind('/').unwrap_or(self.url.len());
        self.url[..end].to_owned()
    }
}

impl Postgres {
    /// Starts a server in a temporary directory. `settings` are lines of its configuration: `max_connections=20`.
    pub fn start(durability: Durability, settings: &[&str]) -> Self {
        let temporary = tempfile::Builder::new()
            .prefix("atoll-postgres-")
            .tempdir()
            .expect("a temporary directory can be created");
        let directory = temporary.path().to_owned();
        let mut server = Self::create(&directory, durability, settings);
        server.temporary = Some(temporary);
        server
    }

    /// Starts a server in a directory, which must exist.
    pub fn start_in(directory: &Path, settings: &[&str]) -> Self {
        Self::create(directory, Durability::Synced, settings)
    }

    fn create(directory: &Path, durability: Durability, settings: &[&str]) -> Self {
        let owner = unprivileged_user();
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))
            .expect("the directory can be opened to the server");
        let data = directory.join("data");
        fs::create_dir(&data).expect("the data directory can be created");
        if let Some((user, group)) = owner {
            for path in [directory, &data] {
                chown(path, Some(user), Some(group)).expect("files can be given to the server");
            }
        }
        let initialized = program("initdb")
            .args(["-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"])
            .args(["--no-sync", "--no-instructions", "-D"])
            .arg(&data)
            .current_dir("/")
            .stdin(Stdio::null())
            .output()
            .expect("initdb can be run: deploy/setup test");
        assert!(
            initialized.status.success(),
            "initdb: {}",
            String::from_utf8_lossy(&initialized.stderr)
        );
        // Users other than `atoll` need a password.
        let access = format!(
            "local all all trust\nhost all {USER} 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        );
        fs::write(data.join("pg_hba.conf"), access).expect("the access rules can be written");
        let mut lines: Vec<String> = [
            "wal_level=minimal",
            "max_wal_senders=0",
            "shared_buffers=32MB",
        ]
        .map(str::to_owned)
        .to_vec();
        if durability == Durability::Unsynced {
            lines.extend(["fsync=off", "full_page_writes=off"].map(str::to_owned));
        }
        lines.extend(settings.iter().map(ToString::to_string));
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
        let port = listener.local_addr().expect("it has an address").port();
        drop(listener);
        let mut server = Self {
            temporary: None,
            directory: directory.to_owned(),
            port,
            settings: lines,
            server: None,
        };
        server.run();
        server
    }

    /// Starts the program and waits until it accepts connections.
    pub fn run(&mut self) {
        let deadline = Instant::now() + START_TIMEOUT;
        while self.server.is_none() {
            // After a kill the server refuses to start until its last process has ended.
            assert!(Instant::now() < deadline, "{}", self.log());
            self.spawn();
            while let Some(server) = &mut self.server {
                if server.try_wait().expect("it is our child").is_some() {
                    self.server = None;
                    std::thread::sleep(Duration::from_millis(50));
                } else if self.is_ready() {
                    return;
                }
                assert!(Instant::now() < deadline, "{}", self.log());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    fn spawn(&mut self) {
        let log = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.directory.join("log"))
            .expect("the log can be written");
        let mut command = program("postgres");
        command.arg("-D").arg(self.directory.join("data"));
        command.arg("-p").arg(self.port.to_string());
        command.arg("-k").arg(&self.directory);
        for setting in ["listen_addresses=127.0.0.1"]
            .into_iter()
            .chain(self.settings.iter().map(String::as_str))
        {
            command.args(["-c", setting]);
        }
        let server = command
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.server = Some(server.expect("postgres can be run: deploy/setup test"));
    }

    fn is_ready(&self) -> bool {
        let status = program("pg_isready")
            .args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()])
            .status();
        status.is_ok_and(|status| status.success())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }

    /// Sends a signal to the server; `STOP` and `CONT` also to its other processes.
    pub fn signal(&self, name: &str) {
        let Some(server) = &self.server else { return };
        if ["STOP", "CONT"].contains(&name) {
            let mut command = Command::new("pkill");
            // Its processes are its children, each in a session of its own.
            command.args(["--signal", name, "-P", &server.id().to_string()]);
            let _ = command.status();
        }
        let mut command = Command::new("kill");
        command.args(["-s", name, &server.id().to_string()]);
        let _ = command.status();
    }

    /// Starts the server again if it has ended.
    pub fn ensure_running(&mut self) {
        let has_ended = |server: &mut Child| server.try_wait().is_ok_and(|end| end.is_some());
        if self.server.as_mut().is_none_or(has_ended) {
            self.server = None;
            self.run();
        }
    }

    /// Shuts the server down, which ends all connections, and starts it again.
    pub fn restart(&mut self) {
        self.stop();
        self.run();
    }

    /// Shuts the server down.
    pub fn stop(&mut self) {
        self.signal("INT");
        if let Some(mut server) = self.server.take() {
            let _ = server.wait();
        }
    }

    /// URL of the server, without a database.
    pub fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}", self.port)
    }

    /// Creates a database and returns its URL.
    pub fn database(&self) -> String {
        create_database(&self.url())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // An immediate shutdown. A server that is killed leaves a segment of shared memory behind.
        self.signal("QUIT");
        let deadline = Instant::now() + Duration::from_secs(10);
        while let Some(server) = &mut self.server {
            if server.try_wait().is_ok_and(|end| end.is_some()) {
                self.server = None;
            } else if Instant::now() > deadline {
                self.kill();
            } else {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        if self.temporary.is_none() {
            return;
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        while fs::remove_dir_all(&self.directory).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn create_database(server: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("t_{}_{number}", std::process::id());
    execute(
        &format!("{server}/postgres"),
        &format!("DROP DATABASE IF EXISTS {name}"),
    );
    execute(
        &format!("{server}/postgres"),
        &format!("CREATE DATABASE {name}"),
    );
    format!("{server}/{name}")
}

/// Executes statements with `psql`.
fn execute(url: &str, sql: &str) {
    let output = program("psql")
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql])
        .stdin(Stdio::null())
        .output()
        .expect("psql can be run");
    assert!(
        output.status.success(),
        "{sql}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// User and group of the server if this process is root.
fn unprivileged_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("there are users");
    let ids = |name: &str| {
        let line = users
            .lines()
            .find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        let user = fields.next()?.parse().ok()?;
        Some((user, fields.next()?.parse().ok()?))
    };
    Some(ids("postgres").expect("there is a user postgres: deploy/setup test"))
}

/// A program of PostgreSQL, run as the unprivileged user, and ended with the thread of its test.
fn program(name: &str) -> Command {
    let path = installed(name);
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "QUIT"]);
    if let Some((user, group)) = unprivileged_user() {
        command.arg(format!("--reuid={user}"));
        command.arg(format!("--regid={group}"));
        command.arg("--clear-groups");
    }
    command.arg(path);
    command
}

/// Debian keeps the programs of the server outside of PATH.
fn installed(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let mut found: Vec<PathBuf> = versions
        .flatten()
        .map(|version| version.path().join("bin").join(name))
        .filter(|path| path.exists())
        .collect();
    found.sort();
    found.pop().unwrap_or_else(|| PathBuf::from(name))
}

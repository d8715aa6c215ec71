//! `atoll mcp`, driven by the official MCP client for Python. Each program in `mcp/` finds the server by the
//! documented environment variables, and reports errors by its exit code.
//!
//! To add one: write `mcp/NAME.py`, and name it in [`programs!`] below.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use atoll_testkit::{Cutter, Scratch};

use crate::api::Server;
use crate::harness::binary;
use crate::sdk::python::tools;

macro_rules! programs {
    ($( $fact:ident => $program:literal $(, $proxy:ident)?; )*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $fact() {
            let mut server = Server::start().await;
            let proxy: Option<Cutter> = None $( .or(Some($proxy(&server))) )?;
            let mut program = Program::start($program, &server, proxy.as_ref());
            tokio::task::block_in_place(|| program.run(&mut server));
            if let Some(proxy) = proxy {
                assert!(proxy.cuts() > 10, "{} cuts", proxy.cuts());
            }
            // The sessions removed their sandboxes.
            let left = server.client().get("/sandboxes").await.array();
            assert!(left.is_empty(), "{left:?}");
            server.close().await;
        }
    )*};
}

/// A proxy that breaks connections repeatedly.
fn flaky(server: &Server) -> Cutter {
    Cutter::hasty(server.address(), 29)
}

programs! {
    agents_work_with_every_tool => "tools.py";
    agents_work_with_every_tool_over_a_bad_line => "tools.py", flaky;
    errors_are_reported_to_agents => "faults.py";
    errors_are_reported_to_agents_over_a_bad_line => "faults.py", flaky;
    agent_commands_are_bounded_reported_and_cancelled => "commands.py";
    agent_commands_are_bounded_over_a_bad_line => "commands.py", flaky;
    session_removes_its_sandboxes => "sessions.py";
    session_removes_its_sandboxes_over_a_bad_line => "sessions.py", flaky;
    session_survives_a_server_restart => "restart.py";
}

/// A running test program.
struct Program {
    child: Child,
    name: &'static str,
    _scratch: Scratch,
}

impl Program {
    fn start(name: &'static str, server: &Server, proxy: Option<&Cutter>) -> Self {
        let scratch = Scratch::new();
        let proxy = proxy.map_or_else(|| server.address().to_owned(), Cutter::address);
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real/mcp");
        let child = Command::new(tools("mcp").join("bin/python"))
            .arg("-B")
            .arg(program.join(name))
            .env("ATOLL_BIN", binary())
            .env("ATOLL_URL", format!("http://{}", server.address()))
            .env("SESSION_URL", format!("http://{proxy}"))
            .env("ATOLL_API_KEY", server.client().key.unwrap())
            // The operator's socket, whose path is the same after a restart.
            .env("ATOLL_DATA_DIR", server.data())
            .env("XDG_CONFIG_HOME", scratch.path())
            .current_dir(scratch.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            child,
            name,
            _scratch: scratch,
        }
    }

    /// Waits for the end of the program. Kills and restarts the server when the program requests it.
    fn run(&mut self, server: &mut Server) {
        let mut stdin = self.child.stdin.take().unwrap();
        let mut stderr = self.child.stderr.take().unwrap();
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).map(|_| text)
        });
        let lines = BufReader::new(self.child.stdout.take().unwrap()).lines();
        for line in lines.map_while(Result::ok) {
            match line.as_str() {
                "restart" => {
                    server.kill_and_start();
                    writeln!(stdin, "{}", server.address()).unwrap();
                }
                line => panic!("{} says {line}", self.name),
            }
        }
        let (status, errors) = (self.child.wait().unwrap(), errors.join().unwrap().unwrap());
        assert!(status.success(), "{}: {status}\n{errors}", self.name);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

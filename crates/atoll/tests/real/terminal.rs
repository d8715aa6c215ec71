//! Commands on terminals: size, several clients, and joining late.

use atoll_model::{ExecSpec, OutputChunk, SandboxId, TerminalSize};
use atoll_testkit::{STOPS, until_stop};
use atoll_worker::{ExecHandle, LocalRuntime, OutputReader, Screen, Size};

use crate::harness::{DEADLINE, Kind, World, probe_spec, stdout_text};

fn size(rows: u16, columns: u16) -> TerminalSize {
    TerminalSize { rows, columns }
}

async fn start(runtime: &LocalRuntime, id: &SandboxId, line: &str) -> ExecHandle {
    let spec = ExecSpec::shell(line)
        .terminal(size(30, 100))
        .tag("terminal");
    runtime
        .exec(id, spec.deadline(DEADLINE))
        .await
        .unwrap()
        .handle
}

/// Reads output up to and including `text`.
async fn until(output: &mut OutputReader, text: &str) -> Vec<u8> {
    let mut heard = Vec::new();
    while !String::from_utf8_lossy(&heard).contains(text) {
        let next = tokio::time::timeout(DEADLINE, output.next()).await;
        match next
            .unwrap_or_else(|_| panic!("waited in vain for {text:?}: {heard:?}"))
            .unwrap()
        {
            Some(OutputChunk::Data { bytes, .. }) => heard.extend(bytes),
            other => panic!(
                "{other:?} before {text:?}: {:?}",
                String::from_utf8_lossy(&heard)
            ),
        }
    }
    heard
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_has_its_own_terminal_of_the_requested_size() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    let line = "tty; stty size; echo $TERM; ls -l $(tty) | cut -c1-10; stat -c '%U %G' $(tty); test -t 2 && echo err; cat < /dev/tty";
    let control = start(&world.runtime, &id, line).await;
    let mut output = control.output(0);
    let heard = until(&mut output, "err\r\n").await;
    let expected = "/dev/pts/0\r\n30 100\r\nxterm-256color\r\ncrw--w----\r\nuser tty\r\nerr\r\n";
    assert_eq!(String::from_utf8_lossy(&heard), expected);
    // Input is echoed, and passed to the command.
    control.write_stdin(b"hello\r").await.unwrap();
    until(&mut output, "hello\r\nhello\r\n").await;
    control.write_stdin(b"\x04").await.unwrap();
    assert!(control.wait().await.success());
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_signals_and_the_last_size_wins() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    let line = "trap 'stty size' WINCH; trap 'echo stopped; exit 3' INT; echo ready; while :; do sleep 0.05; done";
    let control = start(&world.runtime, &id, line).await;
    let mut output = control.output(0);
    until(&mut output, "ready").await;
    for (rows, columns) in [(10, 20), (50, 132)] {
        control.resize(size(rows, columns)).unwrap();
        until(&mut output, &format!("{rows} {columns}\r\n")).await;
    }
    control.write_stdin(b"\x03").await.unwrap();
    until(&mut output, "stopped").await;
    assert_eq!(control.wait().await.code, Some(3));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_terminals_and_several_clients_per_terminal() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    let one = start(&world.runtime, &id, "cat").await;
    let other = start(&world.runtime, &id, "cat").await;
    let mut first = one.output(0);
    let mut second = one.attach().unwrap().output;
    other.write_stdin(b"other\r").await.unwrap();
    one.write_stdin(b"one\r").await.unwrap();
    for output in [&mut first, &mut second] {
        let heard = until(output, "one\r\none\r\n").await;
        assert!(!String::from_utf8_lossy(&heard).contains("other"));
    }
    until(&mut other.output(0), "other\r\nother\r\n").await;
    // A disconnect of a client does not end the terminal.
    drop(second);
    one.write_stdin(b"two\r").await.unwrap();
    until(&mut first, "two\r\ntwo\r\n").await;
    for control in [one, other] {
        control.kill().unwrap();
        control.wait().await;
    }
    world.close().await;
}

/// Screen contents of a terminal after these bytes.
fn shown(bytes: &[u8]) -> Vec<u8> {
    let mut screen = Screen::new(Size {
        rows: 30,
        columns: 100,
    });
    screen.feed(bytes);
    screen.replay()
}

/// A terminal program that stops at fixed points, and its attached clients.
pub struct Watched {
    control: ExecHandle,
    early: OutputReader,
    /// Every byte so far.
    seen: Vec<u8>,
    /// Clients that attached later, with their initial screen.
    late: Vec<(Vec<u8>, OutputReader)>,
}

impl Watched {
    pub async fn start(runtime: &LocalRuntime, id: &SandboxId) -> ExecHandle {
        let spec = probe_spec(&["full-screen"]).terminal(size(30, 100));
        // Each step has a timeout of a minute, and the whole has none: an emulated machine is slow.
        let spec = spec.tag("terminal");
        runtime.exec(id, spec).await.unwrap().handle
    }

    pub fn new(control: ExecHandle) -> Self {
        Self {
            early: control.output(0),
            control,
            seen: Vec::new(),
            late: Vec::new(),
        }
    }

    /// Reads all output until the program stops, attaches another client there, and lets the program continue.
    pub async fn stop(&mut self, stop: usize) {
        // Terminals end lines with CR LF.
        let until = until_stop(stop);
        let until = until.rsplit(|byte| *byte == b'\n').next().unwrap();
        while !self.seen.ends_with(until) {
            let next = tokio::time::timeout(DEADLINE, self.early.next()).await;
            let next = next.unwrap_or_else(|_| panic!("stop {stop}: {:?}", self.seen));
            match next.unwrap() {
                Some(OutputChunk::Data { bytes, .. }) => self.seen.extend(bytes),
                other => panic!("{other:?} before stop {stop}"),
            }
        }
        let attached = self.control.attach().unwrap();
        let position = attached.output.position();
        assert_eq!(position, self.seen.len() as u64, "stop {stop}");
        assert!(!attached.replay.is_empty());
        assert!(shown(&attached.replay) == shown(&self.seen), "stop {stop}");
        self.late.push((attached.replay, attached.output));
        self.control.write_stdin(b"\x04").await.unwrap();
    }

    /// All clients see the same at the end.
    pub async fn end(mut self) {
        rest(&mut self.seen, &mut self.early).await;
        let expected = shown(&self.seen);
        for (stop, (mut bytes, mut output)) in self.late.into_iter().enumerate() {
            rest(&mut bytes, &mut output).await;
            assert!(shown(&bytes) == expected, "who joined as number {stop}");
        }
    }
}

/// Reads the rest of the output until the command ends.
async fn rest(bytes: &mut Vec<u8>, output: &mut OutputReader) {
    loop {
        let next = tokio::time::timeout(DEADLINE, output.next()).await;
        match next.unwrap().unwrap().unwrap() {
            OutputChunk::Data { bytes: more, .. } => bytes.extend(more),
            OutputChunk::Exit(status) => return assert!(status.success(), "{status:?}"),
            gap @ OutputChunk::Gap { .. } => panic!("{gap:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_terminal_client_sees_the_current_screen() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Static).await;
    let mut watched = Watched::new(Watched::start(&world.runtime, &id).await);
    for stop in 0..STOPS {
        watched.stop(stop).await;
    }
    watched.end().await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminals_are_released() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    for _ in 0..300 {
        let control = start(&world.runtime, &id, "exit 5").await;
        assert_eq!(control.wait().await.code, Some(5));
    }
    let done = world.exec(&id, ExecSpec::shell("ls /dev/pts")).await;
    assert!(stdout_text(&done).lines().count() <= 10, "{done:?}");
    world.close().await;
}

//! Commands on terminals: size, several clients, and joining late.

use atoll_model::{Chunk, ExecSpec, SandboxId, TerminalSize};
use atoll_worker::{Control, LocalRuntime, LogReader, Screen, Size};

use crate::world::{DEADLINE, Kind, World, said};

fn size(rows: u16, columns: u16) -> TerminalSize {
    TerminalSize { rows, columns }
}

async fn start(runtime: &LocalRuntime, id: &SandboxId, line: &str) -> Control {
    let spec = ExecSpec::shell(line)
        .terminal(size(30, 100))
        .tag("terminal");
    runtime
        .exec(id, spec.deadline(DEADLINE))
        .await
        .unwrap()
        .control
}

/// Everything that comes until some text has.
async fn until(output: &mut LogReader, text: &str) -> Vec<u8> {
    let mut heard = Vec::new();
    while !String::from_utf8_lossy(&heard).contains(text) {
        let next = tokio::time::timeout(DEADLINE, output.next()).await;
        match next
            .unwrap_or_else(|_| panic!("waited in vain for {text:?}: {heard:?}"))
            .unwrap()
        {
            Some(Chunk::Data { bytes, .. }) => heard.extend(bytes),
            other => panic!(
                "{other:?} before {text:?}: {:?}",
                String::from_utf8_lossy(&heard)
            ),
        }
    }
    heard
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_has_a_terminal_of_the_asked_size_that_is_its_own() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    let line = "tty; stty size; echo $TERM; ls -l $(tty) | cut -c1-10; stat -c '%U %G' $(tty); test -t 2 && echo err; cat < /dev/tty";
    let control = start(&world.runtime, &id, line).await;
    let mut output = control.output(0);
    let heard = until(&mut output, "err\r\n").await;
    let expected = "/dev/pts/0\r\n30 100\r\nxterm-256color\r\ncrw--w----\r\nuser tty\r\nerr\r\n";
    assert_eq!(String::from_utf8_lossy(&heard), expected);
    // Typed, echoed, and given to the command.
    control.write_all(b"hello\r").await.unwrap();
    until(&mut output, "hello\r\nhello\r\n").await;
    control.write_all(b"\x04").await.unwrap();
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
    control.write_all(b"\x03").await.unwrap();
    until(&mut output, "stopped").await;
    assert_eq!(control.wait().await.code, Some(3));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_terminals_and_several_clients_on_one() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    let one = start(&world.runtime, &id, "cat").await;
    let other = start(&world.runtime, &id, "cat").await;
    let mut first = one.output(0);
    let mut second = one.attach().unwrap().output;
    other.write_all(b"other\r").await.unwrap();
    one.write_all(b"one\r").await.unwrap();
    for output in [&mut first, &mut second] {
        let heard = until(output, "one\r\none\r\n").await;
        assert!(!String::from_utf8_lossy(&heard).contains("other"));
    }
    until(&mut other.output(0), "other\r\nother\r\n").await;
    // A client that goes away ends nothing.
    drop(second);
    one.write_all(b"two\r").await.unwrap();
    until(&mut first, "two\r\ntwo\r\n").await;
    for control in [one, other] {
        control.kill().unwrap();
        control.wait().await;
    }
    world.close().await;
}

/// A program that uses the whole screen, in colours, in a region, on the other screen, and goes on.
const FULL_SCREEN: &str = r"
i=0
printf '\033]0;title\007\033[?1049h\033[2J\033[?25l\033[?2004h\033[5;20r'
while [ $i -lt 400 ]; do
  printf '\033[%d;%dH\033[1;3%dmrow %d \033[0m\033[4mé漢\033[24m' $((i % 30 + 1)) $((i * 7 % 90 + 1)) $((i % 8)) $i
  [ $((i % 11)) = 0 ] && printf '\033M\n\n\033[2K'
  [ $((i % 97)) = 0 ] && printf '\033[?1049l shell %d\r\n\033[?1049h' $i
  i=$((i + 1))
done
printf 'done'
sleep 600
";

fn all_of(bytes: &[u8], rows: usize, columns: usize) -> Screen {
    let mut screen = Screen::new(Size { rows, columns });
    screen.feed(bytes);
    screen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_joins_late_sees_what_the_others_see() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    let control = start(&world.runtime, &id, FULL_SCREEN).await;
    let mut early = control.output(0);
    // Some join in the middle, wherever that is.
    let mut late = Vec::new();
    for _ in 0..20 {
        late.push(control.attach().unwrap());
        tokio::task::yield_now().await;
    }
    let seen = until(&mut early, "done").await;
    let expected = all_of(&seen, 30, 100).replay();
    for mut attached in late {
        let mut bytes = attached.replay;
        if !String::from_utf8_lossy(&bytes).contains("done") {
            bytes.extend(until(&mut attached.output, "done").await);
        }
        assert!(all_of(&bytes, 30, 100).replay() == expected);
    }
    control.kill().unwrap();
    control.wait().await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminals_are_given_back() {
    let world = World::open().await;
    let id = world.sandbox(Kind::Base).await;
    for _ in 0..300 {
        let control = start(&world.runtime, &id, "exit 5").await;
        assert_eq!(control.wait().await.code, Some(5));
    }
    let done = world.exec(&id, ExecSpec::shell("ls /dev/pts")).await;
    assert!(said(&done).lines().count() <= 10, "{done:?}");
    world.close().await;
}

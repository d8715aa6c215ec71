use super::super::create_pipe;
use super::super::start::watch_readable;
use super::*;

/// A server splices a terminal's output into a pipe and from there into the log, and may be killed
/// in between.
#[tokio::test]
async fn output_in_the_pipe_of_a_silent_terminal_is_logged() {
    let scratch = tempfile::tempdir().expect("directory");
    let log = OutputLog::new(scratch.path().join("log"));
    // An idle pipe stands for the terminal.
    let (master, _program) = create_pipe().expect("pipe");
    let (reader, writer) = create_pipe().expect("pipe");
    rustix::io::write(&writer, b"left").expect("write");
    let terminal_pump = TerminalPump {
        master: watch_readable(master).expect("watch"),
        pipe: writer,
    };
    let mut pumps = [
        OutputPump {
            stream: Stream::Stdout,
            pipe: Some(watch_readable(reader).expect("watch")),
            terminal_pump: Some(terminal_pump),
            terminal: true,
            inherited: true,
        },
        OutputPump {
            stream: Stream::Stderr,
            pipe: None,
            terminal_pump: None,
            terminal: false,
            inherited: false,
        },
    ];
    let moved = pump_once(&log, &mut pumps);
    let moved = tokio::time::timeout(Duration::from_secs(10), moved).await;
    assert!(moved.is_ok(), "nothing was moved");
    assert_eq!(log.bounds(), (0, 4));
}

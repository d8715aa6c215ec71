use super::super::new_pipe;
use super::super::start::receiver;
use super::*;

/// A server moves a terminal's output into a pipe and from there into the log, and may be killed in between.
#[tokio::test]
async fn output_in_the_pipe_of_a_silent_terminal_is_logged() {
    let scratch = tempfile::tempdir().expect("directory");
    let log = OutputLog::new(scratch.path().join("log"));
    // A pipe that nothing is written into stands for the terminal.
    let (master, _program) = new_pipe().expect("pipe");
    let (reader, writer) = new_pipe().expect("pipe");
    rustix::io::write(&writer, b"left").expect("write");
    let source = Source {
        master: receiver(master).expect("watch"),
        pipe: writer,
    };
    let mut flows = [
        Flow {
            stream: Stream::Stdout,
            pipe: Some(receiver(reader).expect("watch")),
            source: Some(source),
            terminal: true,
            inherited: true,
        },
        Flow {
            stream: Stream::Stderr,
            pipe: None,
            source: None,
            terminal: false,
            inherited: false,
        },
    ];
    let moved = flow(&log, &mut flows);
    let moved = tokio::time::timeout(Duration::from_secs(10), moved).await;
    assert!(moved.is_ok(), "nothing was moved");
    assert_eq!(log.bounds(), (0, 4));
}

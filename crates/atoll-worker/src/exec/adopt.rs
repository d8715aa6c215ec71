//! Adoption of a command that an earlier server started: opens its files, and continues its task with
//! the descriptors that the keeper held.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use atoll_model::Error;
use tokio::sync::watch;

use super::output::Progress;
use super::output_log::OutputLog;
use super::record::ExecRecord;
use super::stdin::StdinQueue;
use super::{ExecState, InheritedFds, set_nonblocking, start, task, terminal};
use crate::error::internal;
use crate::sandbox::Sandbox;

/// Adopts a command that an earlier server started. If `ended` is closed without a status, the
/// command was killed with its sandbox.
pub(crate) fn adopt(
    sandbox: &Arc<Sandbox>,
    record: ExecRecord,
    inherited: InheritedFds,
    ended: tokio::sync::oneshot::Receiver<i32>,
) -> Result<(), Error> {
    let failed = |error: std::io::Error| internal("adopt a command", &error);
    let stem = record.stem();
    let log = OutputLog::open(stem.clone()).map_err(failed)?;
    let log = log
        .with_reader_timeout(sandbox.response_timeout)
        .with_budget(sandbox.execs.budget())
        .with_reader_grace();
    let mut streams = inherited.streams.into_iter();
    let mut next = || streams.next();
    let (first, second, third) = (next(), next(), next());
    let (stdout, stderr, terminal) = match (first, second, third, record.spec.terminal) {
        (Some(master), Some(reader), Some(writer), Some(size)) => {
            let ends = terminal::TerminalFds {
                master,
                reader,
                writer,
            };
            let (terminal, (reader, pump)) = ends.open(size)?;
            for (position, size) in &record.resizes {
                terminal
                    .replay_resize(&log, *position, *size)
                    .map_err(failed)?;
            }
            (Some(reader), None, Some((terminal, pump)))
        }
        (first, second, ..) => {
            let watch = |fd: Option<OwnedFd>| fd.map(start::watch_readable).transpose();
            (watch(first)?, watch(second)?, None)
        }
    };
    let (terminal, terminal_pump) = terminal.unzip();
    let mut input = inherited.input.into_iter();
    let (input, stdin) = if let (Some(queue), Some(pipe)) = (input.next(), input.next()) {
        let queue = StdinQueue::open(stem, queue).map_err(failed)?;
        (Some(queue), Some(set_nonblocking(pipe)?))
    } else {
        // The keeper holds no queue that was delivered and closed: its files have no further use.
        StdinQueue::remove_files(&stem);
        (None, None)
    };
    let status = record.status;
    let leaf = sandbox.group.named_leaf(&record.leaf, status.is_some());
    let state = Arc::new(ExecState {
        leaf: Some(Arc::new(leaf)),
        input,
        terminal,
        progress: watch::Sender::new(Progress {
            status,
            ended_at: record.ended_at,
            closed: false,
        }),
        ..ExecState::from_record(record, log)
    });
    sandbox.execs.add(Arc::clone(&state));
    task::ExecTask {
        sandbox: Arc::clone(sandbox),
        exec: state,
        stdout,
        stderr,
        stdin,
        terminal_pump,
        ended,
        oom_kills_at_start: sandbox.group.oom_kills(),
    }
    .spawn();
    Ok(())
}

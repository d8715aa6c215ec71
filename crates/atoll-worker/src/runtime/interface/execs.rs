//! Commands and terminals of the local runtime.

use std::collections::BTreeMap;

use async_trait::async_trait;
use atoll_model::runtime::{
    ExecHandle, ExecResult, Execs, LogFollower, LogLine, OutputStream, TerminalAttachment,
};
use atoll_model::{
    DiskUsage, Error, ExecId, ExecInfo, ExecSpec, ExecStatus, OutputChunk, Sample, SandboxId,
    TerminalSize,
};

use super::LocalRuntime;
use crate::sandbox::run_blocking;
use crate::{error::internal, exec};

#[async_trait]
impl Execs for LocalRuntime {
    async fn exec(&self, id: &SandboxId, spec: ExecSpec) -> Result<Box<dyn ExecHandle>, Error> {
        Ok(Box::new(Self::exec(self, id, spec).await?.handle))
    }

    async fn execs(&self, id: &SandboxId) -> Result<Vec<ExecInfo>, Error> {
        Self::execs(self, id)
    }

    async fn find_exec(&self, id: &SandboxId, exec: &ExecId) -> Result<Box<dyn ExecHandle>, Error> {
        Ok(Box::new(Self::find_exec(self, id, exec)?))
    }

    async fn find_exec_by_pid(
        &self,
        id: &SandboxId,
        pid: i32,
    ) -> Result<Box<dyn ExecHandle>, Error> {
        Ok(Box::new(Self::find_exec_by_pid(self, id, pid)?))
    }

    async fn find_exec_by_tag(
        &self,
        id: &SandboxId,
        tag: &str,
    ) -> Result<Box<dyn ExecHandle>, Error> {
        Ok(Box::new(Self::find_exec_by_tag(self, id, tag)?))
    }

    async fn variables(&self, id: &SandboxId) -> Result<BTreeMap<String, String>, Error> {
        Self::variables(self, id)
    }

    async fn samples(&self, id: &SandboxId, from: i64, to: i64) -> Result<Vec<Sample>, Error> {
        Self::samples(self, id, from, to)
    }

    async fn disk_usage(&self, id: &SandboxId) -> Result<DiskUsage, Error> {
        Self::disk_usage(self, id).await
    }

    async fn logs(
        &self,
        id: &SandboxId,
        cursor: Option<&str>,
    ) -> Result<Box<dyn LogFollower>, Error> {
        let follower = Self::logs(self, id, cursor)?;
        Ok(Box::new(LocalLogs(Some(follower))))
    }
}

#[async_trait]
impl ExecHandle for exec::ExecHandle {
    fn id(&self) -> &ExecId {
        Self::id(self)
    }

    async fn info(&self) -> Result<ExecInfo, Error> {
        Ok(Self::info(self))
    }

    async fn output(&self, after: u64) -> Result<Box<dyn OutputStream>, Error> {
        Ok(Box::new(Self::output(self, after)))
    }

    async fn output_range(&self) -> Result<(u64, u64), Error> {
        Ok(Self::output_range(self))
    }

    async fn wait(&self) -> Result<ExecStatus, Error> {
        Ok(Self::wait(self).await)
    }

    async fn finish(self: Box<Self>, input: &[u8], limit: usize) -> Result<ExecResult, Error> {
        self.into_streams().finish(input, limit).await
    }

    async fn attach(&self) -> Result<TerminalAttachment, Error> {
        let attachment = Self::attach(self)?;
        Ok(TerminalAttachment {
            replay: attachment.replay,
            size: attachment.size,
            output: Box::new(attachment.output),
        })
    }

    async fn resize(&self, size: TerminalSize) -> Result<(), Error> {
        Self::resize(self, size)
    }

    async fn write_stdin_at(&self, offset: u64, bytes: &[u8]) -> Result<u64, Error> {
        Self::write_stdin_at(self, offset, bytes)
    }

    async fn write_stdin(&self, bytes: &[u8]) -> Result<(), Error> {
        Self::write_stdin(self, bytes).await
    }

    async fn close_stdin(&self) -> Result<(), Error> {
        Self::close_stdin(self)
    }

    async fn signal(&self, signal: i32) -> Result<(), Error> {
        Self::signal(self, signal).await
    }

    async fn kill(&self) -> Result<(), Error> {
        Self::kill(self)
    }
}

#[async_trait]
impl OutputStream for exec::output::OutputReader {
    async fn next(&mut self) -> Result<Option<OutputChunk>, Error> {
        Self::next(self).await
    }

    fn position(&self) -> u64 {
        Self::position(self)
    }
}

/// Follower of the logs. `None` only while a thread reads.
#[derive(Debug)]
struct LocalLogs(Option<exec::log_lines::LogFollower>);

#[async_trait]
impl LogFollower for LocalLogs {
    async fn available(&mut self, max: usize) -> Result<Vec<LogLine>, Error> {
        let mut follower = self.0.take().ok_or_else(cancelled)?;
        // May read large files.
        let (follower, lines) = run_blocking(move || {
            let mut lines = Vec::new();
            while lines.len() < max
                && let Some(line) = follower.try_next()?
            {
                lines.push(line);
            }
            Ok((follower, lines))
        })
        .await?;
        self.0 = Some(follower);
        Ok(lines)
    }

    async fn next(&mut self) -> Result<Option<LogLine>, Error> {
        self.0.as_mut().ok_or_else(cancelled)?.next().await
    }

    fn cursor(&self) -> String {
        let follower = self.0.as_ref();
        follower
            .map(exec::log_lines::LogFollower::cursor)
            .unwrap_or_default()
    }
}

/// The error after a read that failed or whose caller was cancelled.
fn cancelled() -> Error {
    internal(
        "read a log",
        &std::io::Error::from(std::io::ErrorKind::Interrupted),
    )
}

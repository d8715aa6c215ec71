//! Execs of a sandbox: start and lookup.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_model::{Error, ExecId, ExecInfo, ExecSpec, SandboxId};

use super::LocalRuntime;
use crate::exec::table::ExecTable;
use crate::exec::{self, ExecHandle, StartedExec};

impl LocalRuntime {
    /// Starts a command.
    pub async fn exec(&self, id: &SandboxId, spec: ExecSpec) -> Result<StartedExec, Error> {
        self.shared.foreground.record_activity();
        let _time = self.time("exec");
        exec::start::start(self.find(id)?, spec).await
    }

    /// Variables of every command of a running sandbox: the template's and its own.
    pub fn variables(&self, id: &SandboxId) -> Result<BTreeMap<String, String>, Error> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let all = self.find(id)?.environment();
        Ok(all
            .iter()
            .map(|(name, value)| (text(name), text(value)))
            .collect())
    }

    /// The execs of a sandbox, newest first.
    pub fn execs(&self, id: &SandboxId) -> Result<Vec<ExecInfo>, Error> {
        Ok(self.execs_of(id)?.list())
    }

    pub(crate) fn execs_of(&self, id: &SandboxId) -> Result<Arc<ExecTable>, Error> {
        let (table, _) = self.entry(id)?.execs(id)?;
        Ok(table)
    }

    /// A running or ended exec, by its id.
    pub fn find_exec(&self, id: &SandboxId, exec: &ExecId) -> Result<ExecHandle, Error> {
        self.exec_by(id, |table| table.find(exec))
    }

    /// An exec by its pid in the sandbox.
    pub fn find_exec_by_pid(&self, id: &SandboxId, pid: i32) -> Result<ExecHandle, Error> {
        self.exec_by(id, |table| table.find_by_pid(pid))
    }

    /// The newest exec with a tag.
    pub fn find_exec_by_tag(&self, id: &SandboxId, tag: &str) -> Result<ExecHandle, Error> {
        self.exec_by(id, |table| table.find_by_tag(tag))
    }

    fn exec_by(
        &self,
        id: &SandboxId,
        find: impl FnOnce(&ExecTable) -> Result<Arc<exec::ExecState>, Error>,
    ) -> Result<ExecHandle, Error> {
        let (table, sandbox) = self.entry(id)?.execs(id)?;
        Ok(ExecHandle::new(find(&table)?, sandbox))
    }
}

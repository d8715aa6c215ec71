//! Admission of new commands: limits on what runs at once, and idempotency keys.

use std::sync::{Arc, MutexGuard};

use atoll_model::{Code, Error, ExecSpec, Idempotency};

use super::super::ExecState;
use super::{ExecTable, Inner, MAX_SPEC_BYTES};

/// Commands of a sandbox that run at once.
const MAX_RUNNING: usize = 256;
/// How many of them may have a terminal.
const MAX_TERMINALS: usize = 20;

/// Commands that are being started and are not in the table yet.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Reserved {
    pub(super) commands: usize,
    pub(super) terminals: usize,
    pub(super) spec_bytes: usize,
}

/// The outcome of [`ExecTable::reserve`].
pub(crate) enum Reservation<'a> {
    /// The command may be started.
    New(ExecReservation<'a>),
    /// A request with the same idempotency key started this command before.
    Existing(Arc<ExecState>),
}

/// Counts a command as running until it is in the table. Dropping it frees the place.
pub(crate) struct ExecReservation<'a> {
    table: &'a ExecTable,
    terminals: usize,
    spec_bytes: usize,
    key: Option<String>,
}

impl Drop for ExecReservation<'_> {
    fn drop(&mut self) {
        let mut inner = self.table.inner();
        inner.reserved.commands -= 1;
        inner.reserved.terminals -= self.terminals;
        inner.reserved.spec_bytes -= self.spec_bytes;
        if let Some(key) = &self.key {
            inner.reserved_keys.remove(key);
            drop(inner);
            self.table.changes.send_modify(|_| {});
        }
    }
}

impl ExecTable {
    /// Reserves a place for a new command, or finds the command that a request with the same
    /// idempotency key started. Waits while such a command is being started.
    pub(crate) async fn reserve(&self, spec: &ExecSpec) -> Result<Reservation<'_>, Error> {
        loop {
            let mut changes = self.changes.subscribe();
            if let Some(reservation) = self.try_reserve(spec)? {
                return Ok(reservation);
            }
            let _ = changes.changed().await;
        }
    }

    /// `None` while a command with the same idempotency key is being started.
    fn try_reserve(&self, spec: &ExecSpec) -> Result<Option<Reservation<'_>>, Error> {
        let Some(again) = &spec.idempotency else {
            return self.reserve_new(self.inner(), spec).map(Some);
        };
        let inner = self.load_complete();
        if let Some(existing) = inner.find_idempotent(again)? {
            return Ok(Some(Reservation::Existing(existing)));
        }
        if inner.reserved_keys.contains(&again.key) {
            return Ok(None);
        }
        self.reserve_new(inner, spec).map(Some)
    }

    /// Reserves a place, or fails with the limit that is reached.
    pub(super) fn reserve_new(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        spec: &ExecSpec,
    ) -> Result<Reservation<'_>, Error> {
        let terminals = usize::from(spec.terminal.is_some());
        let spec_bytes = spec.memory_estimate();
        let mut busy = inner.reserved;
        busy.spec_bytes += spec_bytes;
        for number in &inner.open {
            let Some(exec) = inner.all.get(number).filter(|exec| !exec.has_ended()) else {
                continue;
            };
            busy.commands += 1;
            busy.terminals += usize::from(exec.spec.terminal.is_some());
            busy.spec_bytes += inner.spec_bytes_of(*number);
        }
        let problem = if busy.commands >= MAX_RUNNING {
            format!("{} commands run in this sandbox already", busy.commands)
        } else if terminals > 0 && busy.terminals >= MAX_TERMINALS {
            format!("the sandbox has {} terminals already", busy.terminals)
        } else if busy.spec_bytes > MAX_SPEC_BYTES {
            "the commands that run in this sandbox have too many and too long arguments".into()
        } else {
            inner.reserved.commands += 1;
            inner.reserved.terminals += terminals;
            inner.reserved.spec_bytes += spec_bytes;
            let key = spec.idempotency.as_ref().map(|again| again.key.clone());
            inner.reserved_keys.extend(key.clone());
            return Ok(Reservation::New(ExecReservation {
                table: self,
                terminals,
                spec_bytes,
                key,
            }));
        };
        Err(Error::new(Code::QuotaExceeded, problem)
            .remedy("wait until a command ends, or end one"))
    }
}

impl Inner {
    /// The command that was started with this key; an error if its request was a different one.
    fn find_idempotent(&self, again: &Idempotency) -> Result<Option<Arc<ExecState>>, Error> {
        for exec in self.all.values().rev() {
            match &exec.spec.idempotency {
                Some(known) if known == again => return Ok(Some(Arc::clone(exec))),
                Some(known) if known.key == again.key => return Err(Idempotency::mismatch_error()),
                _ => {}
            }
        }
        Ok(None)
    }
}

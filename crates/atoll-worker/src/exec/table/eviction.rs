//! Removal of old ended commands, so that memory, records and files of a sandbox are bounded.

use std::sync::Arc;

use super::super::ExecState;
use super::{ExecTable, Inner, MAX_SPEC_BYTES};

/// Ended commands that are kept, with their output.
pub(super) const MAX_ENDED: usize = 256;
/// Evictable commands that wait for the journal before a flush is requested: it is written in batches
/// of this size.
pub(super) const FLUSH_THRESHOLD: usize = MAX_ENDED;
/// Evictable commands that wait for the journal before the oldest are evicted without it.
pub(super) const MAX_UNJOURNALED: usize = 4 * MAX_ENDED;

impl ExecTable {
    /// Evicts the oldest ended commands beyond the limits and removes their files. A command that the
    /// journal lacks stays, unless so many wait that the journal must be failing.
    pub(crate) fn evict_ended(&self) {
        let mut inner = self.inner();
        let Inner { all, open, .. } = &mut *inner;
        open.retain(|number| all.get(number).is_some_and(|exec| !exec.is_closed()));
        let mut excess = (inner.all.len() - inner.open.len()).saturating_sub(MAX_ENDED);
        let open = inner.open.iter().map(|number| inner.spec_bytes_of(*number));
        let mut bytes = inner.total_spec_bytes - open.sum::<usize>();
        let (mut evicted, mut request_flush) = (Vec::new(), false);
        for (number, exec) in &inner.all {
            if excess == 0 && bytes <= MAX_SPEC_BYTES {
                break;
            }
            if inner.open.contains(number) {
                continue;
            }
            let notifier = self.notifier.as_ref();
            if let Some(notifier) = notifier.filter(|_| !exec.journaled.is_current(true)) {
                if excess <= MAX_UNJOURNALED && bytes <= 4 * MAX_SPEC_BYTES {
                    // One flush serves all that wait.
                    request_flush = (excess >= FLUSH_THRESHOLD || bytes > MAX_SPEC_BYTES)
                        && !inner.flush_requested;
                    break;
                }
                notifier.count_lost();
            }
            excess = excess.saturating_sub(1);
            bytes -= inner.spec_bytes_of(*number);
            evicted.push(*number);
        }
        let evicted: Vec<Arc<ExecState>> = evicted
            .into_iter()
            .filter_map(|number| inner.remove(number))
            .collect();
        inner.flush_requested |= request_flush;
        drop(inner);
        if let Some(notifier) = self.notifier.as_ref().filter(|_| request_flush) {
            notifier.request_flush();
        }
        if !evicted.is_empty() {
            let removed = evicted
                .iter()
                .map(|exec| exec.with_record(|record| record.remove_files(&exec.log)));
            self.record_log.tombstone(&removed.collect::<Vec<_>>());
        }
    }
}

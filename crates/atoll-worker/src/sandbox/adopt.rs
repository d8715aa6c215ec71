//! Adoption of a running sandbox, from its record, the descriptors that its keeper holds and the
//! reports of its PID 1.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use atoll_jail::wire::Channel;
use atoll_model::{Error, SandboxState};
use tokio::sync::oneshot;

use super::{DEVPTS_REQUEST_ID, Parts, Record, Sandbox, variables};
use crate::error::internal;
use crate::exec;
use crate::init_channel::InitChannel;
use crate::keeper::SurvivingSandbox;
use crate::runtime::RuntimeState;

/// Upper bound of the request ids that an earlier server may have used and not recorded.
const REQUEST_ID_MARGIN: u32 = 1000;

impl Sandbox {
    /// Adopts a running sandbox.
    pub(crate) fn adopt(
        shared: &Arc<RuntimeState>,
        directory: PathBuf,
        mut record: Record,
        mut found: SurvivingSandbox,
    ) -> Result<Arc<Self>, Error> {
        let template = shared
            .templates
            .get_layer(&record.spec.template, record.layer.as_deref());
        let template = template.map_err(|error| internal("lease the template", &error))?;
        record.layer.clone_from(&template.meta.id);
        let ids = record.ids();
        shared.instance.ranges.inherit(ids);
        let group = shared.instance.cgroups.group(record.info.id.as_str(), ids);
        // The freezer's state counts, not the record's: the earlier server may have been killed
        // between the two, or before the last process was frozen.
        record.info.state = if group.is_frozen() && group.freeze().is_ok() {
            SandboxState::Paused
        } else {
            SandboxState::Running
        };
        record.write(&directory)?;
        let terminals = found.execs.remove(&DEVPTS_REQUEST_ID).unwrap_or_default();
        let terminals = terminals.into_iter().next();
        let execs = shared.table(&record.info.id, &directory, true);
        let records = exec::record::ExecRecord::read_all(execs.record_log())?;
        let running: Vec<u32> = records
            .iter()
            .filter(|record| record.status.is_none())
            .map(|record| record.request)
            .collect();
        let unfinished = records.iter().filter(|record| record.status.is_none());
        let unfinished = unfinished.map(|record| record.id.as_str()).collect();
        exec::stdin::StdinQueue::remove_stale(execs.directory(), &unfinished);
        let used = records.iter().map(|record| record.request);
        let held = found
            .execs
            .keys()
            .map(|request| request & !exec::stdin_request_id(0));
        let used = used.chain(held).max().unwrap_or(0);
        rustix::io::ioctl_fionbio(&found.control, true)
            .map_err(|error| internal("change a socket", &std::io::Error::from(error)))?;
        let channel = Channel::new(found.control);
        let (init, mut ends) = InitChannel::adopt(channel, &running, used + REQUEST_ID_MARGIN)?;
        let environment = variables(&template, record.authorities.as_ref(), &record.spec)?;
        let parts = Parts {
            record,
            environment,
            init,
            group,
            process: found.process,
            keeper: found.keeper,
            execs,
            // All links are adopted together, later.
            link: None,
            directory,
            terminals,
            template,
        };
        let sandbox = Arc::new(Self::new(shared, parts));
        for record in records {
            let mut held = |request| found.execs.remove(&request).unwrap_or_default();
            let held = exec::InheritedFds {
                streams: held(record.request),
                input: held(exec::stdin_request_id(record.request)),
            };
            if let Err(error) = adopt_exec(&sandbox, record, held, &mut ends) {
                sandbox.detach();
                return Err(error);
            }
        }
        // Execs without a record were never acknowledged to a caller.
        for request in found.execs.into_keys() {
            sandbox.release(request);
        }
        Ok(sandbox)
    }
}

fn adopt_exec(
    sandbox: &Arc<Sandbox>,
    record: exec::record::ExecRecord,
    held: exec::InheritedFds,
    ends: &mut HashMap<u32, oneshot::Receiver<i32>>,
) -> Result<(), Error> {
    if record.status.is_some() {
        sandbox.ack_exec_end(record.request);
        if held.streams.is_empty() {
            sandbox.execs.add_ended(record);
            return Ok(());
        }
    }
    // If PID 1 does not know its end either, the exec gets no exit status.
    let ended = ends
        .remove(&record.request)
        .unwrap_or_else(|| oneshot::channel().1);
    exec::adopt(sandbox, record, held, ended)
}

//! A sandbox's PID 1 before the sandbox exists: cloned by the keeper into its namespaces and its
//! control group.

use std::sync::Arc;
use std::time::Instant;

use atoll_jail::cgroup::SandboxCgroup;
use atoll_jail::wire::{self, ToInit};
use atoll_model::{Error, Timings};

use super::planned::PlannedSandbox;
use super::{retry_while_out_of_fds, run_blocking, spawn_cleanup};
use crate::error::{internal, jail};
use crate::init_channel::InitChannel;
use crate::keeper::InitProcess;
use crate::runtime::RuntimeState;

/// PID 1 in its namespaces and, on cgroup v2, in its limits.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) group: SandboxCgroup,
    pub(super) init: InitChannel,
    pub(super) pid1: InitProcess,
    /// Whether it has got its boot configuration.
    pub(super) boot_sent: bool,
    pub(super) timings: Timings,
}

impl Process {
    /// Has the keeper clone PID 1, and sends the boot configuration if there is one.
    pub(super) async fn create(
        shared: &Arc<RuntimeState>,
        planned: &PlannedSandbox,
        boot: Option<ToInit>,
        begin: Instant,
    ) -> Result<Self, Error> {
        let group = {
            let (shared, id, ids) = (Arc::clone(shared), planned.id.clone(), planned.ids);
            let plan = Arc::clone(&planned.plan);
            run_blocking(move || {
                let group = shared.instance.cgroups.add(id.as_str(), &plan.limits, ids);
                group.map_err(|error| jail(&error))
            })
            .await?
        };
        let slot = begin.elapsed();
        let begin = Instant::now();
        let boot_sent = boot.is_some();
        match Self::clone(shared, planned, &group, boot).await {
            Ok((init, pid1)) => Ok(Self {
                group,
                init,
                pid1,
                boot_sent,
                timings: Timings {
                    slot,
                    clone: begin.elapsed(),
                    ..Timings::default()
                },
            }),
            Err(error) => {
                let all = Arc::clone(shared);
                let cleanup = async move {
                    let _ =
                        retry_while_out_of_fds(&all, || with_group(&group, SandboxCgroup::remove))
                            .await;
                };
                spawn_cleanup(shared, cleanup).await;
                Err(error)
            }
        }
    }

    async fn clone(
        shared: &RuntimeState,
        planned: &PlannedSandbox,
        group: &SandboxCgroup,
        boot: Option<ToInit>,
    ) -> Result<(InitChannel, InitProcess), Error> {
        let cgroup = group.open().map_err(|error| jail(&error))?;
        let (outside, inside) =
            wire::pair().map_err(|error| internal("create a sandbox's socket", &error))?;
        let init = InitChannel::new(outside)?;
        if let Some(boot) = boot {
            init.send(&boot, &[]).await?;
        }
        let plan = &planned.plan;
        let pid1 = shared.keeper.spawn(
            planned.id.as_str(),
            inside.into_fd(),
            init.socket(),
            cgroup,
            plan.ids,
            plan.namespaces,
        );
        let pid1 = pid1.await?;
        Ok((init, pid1))
    }

    /// Kills it and removes its control group.
    pub(super) async fn discard(mut self, shared: &RuntimeState) {
        let _ =
            retry_while_out_of_fds(shared, || with_group(&self.group, SandboxCgroup::kill)).await;
        let _ = self.pid1.exit_status.wait_for(Option::is_some).await;
        let _ =
            retry_while_out_of_fds(shared, || with_group(&self.group, SandboxCgroup::remove)).await;
    }
}

/// Runs blocking work with a control group.
async fn with_group(
    group: &SandboxCgroup,
    work: impl FnOnce(&SandboxCgroup) -> Result<(), atoll_jail::Error> + Send + 'static,
) -> Result<(), Error> {
    let group = group.clone();
    run_blocking(move || work(&group).map_err(|error| jail(&error))).await
}

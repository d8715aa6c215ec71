//! A sandbox's PID 1 before the sandbox exists: cloned by the keeper into its namespaces and its
//! control group.

use std::sync::Arc;
use std::time::Instant;

use atoll_jail::cgroup::Group;
use atoll_jail::wire::{self, ToInit};
use atoll_model::{Error, Timings};

use super::planned::Wish;
use super::{blocking, give_back, insist};
use crate::error::{internal, jail};
use crate::init_channel::Init;
use crate::keeper::Parent;
use crate::runtime::Shared;

/// PID 1 in its namespaces and, on cgroup v2, in its limits.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) group: Group,
    pub(super) init: Init,
    pub(super) parent: Parent,
    /// Whether it has got its boot configuration.
    pub(super) told: bool,
    pub(super) timings: Timings,
}

impl Process {
    /// Has the keeper clone PID 1, and sends the boot configuration if there is one.
    pub(super) async fn make(
        shared: &Arc<Shared>,
        wish: &Wish,
        boot: Option<ToInit>,
        begin: Instant,
    ) -> Result<Self, Error> {
        let group = {
            let (shared, id, ids) = (Arc::clone(shared), wish.id.clone(), wish.ids);
            let plan = Arc::clone(&wish.plan);
            blocking(move || {
                let group = shared.instance.cgroups.add(id.as_str(), &plan.limits, ids);
                group.map_err(|error| jail(&error))
            })
            .await?
        };
        let slot = begin.elapsed();
        let begin = Instant::now();
        let told = boot.is_some();
        match Self::clone(shared, wish, &group, boot).await {
            Ok((init, parent)) => Ok(Self {
                group,
                init,
                parent,
                told,
                timings: Timings {
                    slot,
                    clone: begin.elapsed(),
                    ..Timings::default()
                },
            }),
            Err(error) => {
                let all = Arc::clone(shared);
                let removed = async move {
                    let _ = insist(&all, || with(&group, Group::remove)).await;
                };
                give_back(shared, removed).await;
                Err(error)
            }
        }
    }

    async fn clone(
        shared: &Shared,
        wish: &Wish,
        group: &Group,
        boot: Option<ToInit>,
    ) -> Result<(Init, Parent), Error> {
        let cgroup = group.open().map_err(|error| jail(&error))?;
        let (outside, inside) =
            wire::pair().map_err(|error| internal("make a sandbox's socket", &error))?;
        let init = Init::new(outside)?;
        if let Some(boot) = boot {
            init.send(&boot, &[]).await?;
        }
        let plan = &wish.plan;
        let parent = shared.keeper.spawn(
            wish.id.as_str(),
            inside.into_fd(),
            init.socket(),
            cgroup,
            plan.ids,
            plan.namespaces,
        );
        let parent = parent.await?;
        Ok((init, parent))
    }

    /// Kills it and removes its control group.
    pub(super) async fn give_back(mut self, shared: &Shared) {
        let _ = insist(shared, || with(&self.group, Group::kill)).await;
        let _ = self.parent.died.wait_for(Option::is_some).await;
        let _ = insist(shared, || with(&self.group, Group::remove)).await;
    }
}

/// Runs blocking work with a control group.
async fn with(
    group: &Group,
    work: impl FnOnce(&Group) -> Result<(), atoll_jail::Error> + Send + 'static,
) -> Result<(), Error> {
    let group = group.clone();
    blocking(move || work(&group).map_err(|error| jail(&error))).await
}

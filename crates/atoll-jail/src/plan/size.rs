//! The size of a sandbox: its cgroup limits, and the values that its programs see.

use super::{Spec, view};
use crate::Error;
use crate::facts::Facts;
use crate::wire;

/// Files to write in the sandbox's cgroups: name and value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Limits {
    /// By v1 controller.
    pub v1: Vec<(String, Vec<(String, String)>)>,
    /// In cgroup2.
    pub v2: Vec<(String, String)>,
}

/// Parts of the plan that depend on the size and can be changed while the sandbox runs. The sizes of file systems in
/// memory do not change after the first program was started; their contents count as memory of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Size {
    /// Limits as cgroup files.
    pub limits: Limits,
    pub(super) views: Vec<(String, String)>,
    pub(super) processors: Vec<u32>,
}

/// Computes the same values for a size as [`plan`](super::plan).
pub fn size(spec: &Spec, facts: &Facts) -> Result<Size, Error> {
    let mut processors = processors(spec, facts);
    if processors.is_empty() {
        processors.clone_from(&facts.processors);
    }
    Ok(Size {
        limits: limits(spec, facts)?,
        views: view::views(spec, processors.len()),
        processors,
    })
}

impl Size {
    /// Views that differ from those of another size.
    pub fn since(&self, old: &Self) -> wire::Size {
        let views = self.views.iter().filter(|view| !old.views.contains(view));
        wire::Size {
            views: views.cloned().collect(),
            processors: self.processors.clone(),
        }
    }
}

/// Limits as cgroup files, in whichever hierarchy has each controller.
pub(super) fn limits(spec: &Spec, facts: &Facts) -> Result<Limits, Error> {
    let cgroups = &facts.cgroups;
    if cgroups.v2.is_none() {
        return Err(Error::Unsupported {
            feature: "control groups",
            why: "no cgroup2 hierarchy is mounted".into(),
            remedy: "mount one: mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 none /sys/fs/cgroup/unified",
        });
    }
    let mut limits = Limits::default();
    // A quota of all processors has no effect, and its accounting costs time.
    let unbounded = spec.millicpus as usize >= facts.processors.len() * 1000;
    let file = |name: &str, value: String| (name.to_owned(), value);
    for controller in crate::facts::CONTROLLERS {
        if cgroups.v1.contains_key(controller) {
            let mut files = match controller {
                "cpu" if unbounded => Vec::new(),
                "cpu" => vec![
                    file("cpu.cfs_period_us", "100000".into()),
                    file(
                        "cpu.cfs_quota_us",
                        (u64::from(spec.millicpus) * 100).to_string(),
                    ),
                ],
                "memory" => vec![file("memory.limit_in_bytes", spec.memory.to_string())],
                _ => vec![file("pids.max", spec.pids.to_string())],
            };
            if controller == "memory" && cgroups.swap {
                files.push(file("memory.memsw.limit_in_bytes", spec.memory.to_string()));
            }
            limits.v1.push((controller.into(), files));
        } else if cgroups
            .v2_controllers
            .iter()
            .any(|known| known == controller)
        {
            match controller {
                "cpu" if unbounded => {}
                "cpu" => limits.v2.push(file(
                    "cpu.max",
                    format!("{} 100000", u64::from(spec.millicpus) * 100),
                )),
                "memory" => {
                    limits.v2.push(file("memory.max", spec.memory.to_string()));
                    if cgroups.swap {
                        limits.v2.push(file("memory.swap.max", "0".into()));
                    }
                }
                _ => limits.v2.push(file("pids.max", spec.pids.to_string())),
            }
        } else {
            return Err(Error::Unsupported {
                feature: "control groups",
                why: format!("no hierarchy has the {controller} controller"),
                remedy: "enable the controller on the kernel command line (cgroup_enable=NAME)",
            });
        }
    }
    Ok(limits)
}

/// As many processors as the quota can use, selected by the id range to spread the load; empty for all.
pub(super) fn processors(spec: &Spec, facts: &Facts) -> Vec<u32> {
    let wanted = spec.millicpus.div_ceil(1000).max(1) as usize;
    let all = &facts.processors;
    if wanted >= all.len() {
        return Vec::new();
    }
    let first = (spec.ids.base / spec.ids.count.max(1)) as usize * wanted;
    let mut chosen: Vec<u32> = (0..wanted).map(|n| all[(first + n) % all.len()]).collect();
    chosen.sort_unstable();
    chosen
}

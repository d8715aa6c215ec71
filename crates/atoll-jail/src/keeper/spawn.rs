//! Creates PID 1: clones it with the sandbox's id on the host, then writes its id maps.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::{HeldSandbox, Keeper};
use crate::inside;
use crate::sys;
use crate::wire::{Channel, Fault};

/// Name of PID 1 in `ps`.
const TITLE: &str = "atoll-init";

impl Keeper {
    /// Pid on the host, and user namespace.
    pub(super) fn spawn(
        &mut self,
        token: u32,
        name: String,
        ids: (u32, u32),
        namespaces: u64,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(i32, Option<OwnedFd>), Fault> {
        let mut descriptors = descriptors.into_iter();
        let (Some(control), Some(outside)) = (descriptors.next(), descriptors.next()) else {
            return Err(fault("no control socket", libc::EPROTO));
        };
        let cgroup = descriptors.next();
        let users = namespaces & libc::CLONE_NEWUSER as u64 != 0;
        if users {
            sys::set_effective_uid(ids.0).map_err(fault_at("take the sandbox's id"))?;
        }
        let cgroup = cgroup.as_ref().map(AsFd::as_fd);
        // SAFETY: the keeper has one thread.
        let cloned = unsafe {
            self.spawner
                .clone(namespaces, cgroup, control.as_fd(), run_init)
        };
        if users {
            sys::set_effective_uid(0).map_err(fault_at("take our own id back"))?;
        }
        let pid = cloned.map_err(fault_at("clone PID 1"))?;
        let kept = HeldSandbox {
            token,
            name,
            control: outside,
            execs: BTreeMap::new(),
        };
        self.sandboxes.insert(pid, kept);
        let prepared = map(pid, ids, users).and_then(|namespace| {
            let gone_on = self.spawner.release();
            gone_on.map_err(fault_at("let PID 1 go on"))?;
            Ok(namespace)
        });
        if prepared.is_err() {
            let _ = sys::kill(pid, libc::SIGKILL);
        }
        prepared.map(|namespace| (pid, namespace))
    }
}

/// Main function of PID 1, after its ids are mapped.
fn run_init(control: OwnedFd) -> ! {
    sys::set_title(TITLE);
    sys::set_name(c"atoll-init");
    inside::init(Channel::new(control));
    sys::exit(1);
}

/// Writes the id maps of a new PID 1; returns its user namespace.
fn map(pid: i32, (base, count): (u32, u32), users: bool) -> Result<Option<OwnedFd>, Fault> {
    if !users {
        return Ok(None);
    }
    let map = format!("0 {base} {count}\n");
    fs::write(format!("/proc/{pid}/gid_map"), &map).map_err(fault_at("map group ids"))?;
    fs::write(format!("/proc/{pid}/uid_map"), &map).map_err(fault_at("map user ids"))?;
    let opened = fs::File::open(format!("/proc/{pid}/ns/user"));
    let namespace = opened.map_err(fault_at("open the user namespace"))?;
    Ok(Some(namespace.into()))
}

fn fault(step: &str, errno: i32) -> Fault {
    Fault {
        step: step.into(),
        errno,
    }
}

fn fault_at(step: &'static str) -> impl Fn(io::Error) -> Fault {
    move |error| fault(step, error.raw_os_error().unwrap_or(libc::EIO))
}

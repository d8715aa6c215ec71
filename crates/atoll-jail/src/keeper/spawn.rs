//! Creates PID 1: cloned under the sandbox's own outside id, then its ids are mapped.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::{HeldSandbox, Keeper};
use crate::inside;
use crate::sys;
use crate::wire::{Channel, Fault};

/// What `ps` calls PID 1 inside a sandbox.
const TITLE: &str = "atoll-init";

impl Keeper {
    /// Its pid on the host, and its user namespace.
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

/// PID 1, once its ids are mapped.
fn run_init(control: OwnedFd) -> ! {
    sys::set_title(TITLE);
    sys::set_name(c"atoll-init");
    inside::init(Channel::new(control));
    sys::exit(1);
}

/// Maps the ids of a fresh PID 1; its user namespace.
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

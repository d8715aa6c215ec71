//! A planned sandbox: its checked spec, a lease of its template and the plan of its isolation.

use std::fs;
use std::path::{Component, Path};
use std::sync::Arc;

use atoll_jail::plan::{IdRange, Plan, Spec, plan};
use atoll_jail::wire;
use atoll_model::{Code, Error, HostMount, SandboxId, SandboxSpec};

use crate::authorities::Layer;
use crate::error::{internal, jail};
use crate::runtime::RuntimeState;
use crate::template::{self, Template};

/// A sandbox to create.
pub(super) struct PlannedSandbox {
    pub(super) id: SandboxId,
    pub(super) ids: IdRange,
    pub(super) spec: SandboxSpec,
    pub(super) template: Template,
    /// Layer above the template's layer.
    pub(super) authorities: Option<Arc<Layer>>,
    pub(super) plan: Arc<Plan>,
    pub(super) origin: Origin,
}

/// Why a sandbox is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// For a create request.
    Request,
    /// For the warm pool.
    Pool,
    /// A restart on existing files; the field is the time of the create.
    Restart(i64),
}

impl Origin {
    pub(super) fn for_create(is_pooled: bool) -> Self {
        if is_pooled { Self::Pool } else { Self::Request }
    }
}

impl PlannedSandbox {
    pub(super) fn new(
        shared: &RuntimeState,
        id: SandboxId,
        ids: IdRange,
        spec: SandboxSpec,
        template: Template,
        origin: Origin,
    ) -> Result<Self, Error> {
        let mut plan = plan(&jail_spec(&id, &spec, &template, ids), &shared.facts)
            .map_err(|error| jail(&error))?;
        if let Some(plan_override) = &shared.plan_override {
            plan_override(&mut plan);
        }
        let authorities = shared.authorities.layer(&template)?;
        Ok(Self {
            id,
            ids,
            spec,
            template,
            authorities,
            plan: Arc::new(plan),
            origin,
        })
    }

    /// With the default spec, for an embryo.
    pub(super) fn for_embryo(shared: &RuntimeState) -> Result<Self, Error> {
        let spec = SandboxSpec::default();
        let template = check(shared, &spec, None)?;
        let ids = shared.instance.ranges.claim();
        let ids = ids.map_err(|error| jail(&error))?;
        let (id, origin) = (SandboxId::random(), Origin::Request);
        let planned = Self::new(shared, id, ids, spec, template, origin);
        if planned.is_err() {
            shared.instance.ranges.release(ids);
        }
        planned
    }
}

/// Checks a spec and leases its template: the current layer, or the one with this id.
pub(super) fn check(
    shared: &RuntimeState,
    spec: &SandboxSpec,
    layer: Option<&str>,
) -> Result<Template, Error> {
    super::check(shared, spec)?;
    let template = shared.templates.get_layer(&spec.template, layer);
    let template = template.map_err(|error| template_error(&error))?;
    check_mounts(spec)?;
    Ok(template)
}

/// Checks that host paths of mounts exist and targets are plain absolute paths.
fn check_mounts(spec: &SandboxSpec) -> Result<(), Error> {
    for HostMount { source, target } in &spec.mounts {
        let path = Path::new(target);
        let is_plain = path.is_absolute()
            && !path.components().any(|part| part == Component::ParentDir)
            && path != Path::new("/");
        if !is_plain {
            return Err(Error::invalid(
                "mount",
                format!("the mount target {target:?} is not an absolute path below /"),
                "use --mount /on/the/host:/in/the/sandbox",
            ));
        }
        if source.to_str().is_none() {
            let message = format!("the mount source {} is not UTF-8", source.display());
            return Err(Error::invalid("mount", message, "rename it"));
        }
        if let Err(error) = fs::metadata(source) {
            let source = source.display();
            return Err(Error::invalid(
                "mount",
                format!("the mount source {source} cannot be opened: {error}"),
                "name a file or directory of this host",
            ));
        }
    }
    Ok(())
}

fn template_error(error: &template::Error) -> Error {
    match error {
        template::Error::Unknown { name, known } => Error::new(
            Code::UnknownTemplate,
            format!("there is no template {name:?}"),
        )
        .remedy(format!("choose one of: {}", known.join(", ")))
        .detail("template", name),
        template::Error::Name(name) => {
            Error::new(Code::UnknownTemplate, error.to_string()).detail("template", name)
        }
        template::Error::LayerMissing { name } => {
            Error::new(Code::UnknownTemplate, error.to_string())
                .remedy("its own files exist: delete it, or restore the layer")
                .detail("template", name)
        }
        error => internal("the template cannot be used", error),
    }
}

/// What `atoll-jail` needs to plan the isolation.
pub(super) fn jail_spec(
    id: &SandboxId,
    spec: &SandboxSpec,
    template: &Template,
    ids: IdRange,
) -> Spec {
    let meta = &template.meta;
    Spec {
        id: id.to_string(),
        ids,
        millicpus: spec.limits.cpus.0,
        memory: spec.limits.memory.0,
        pids: spec.limits.pids,
        user: wire::User {
            name: meta.user.name.clone(),
            uid: meta.user.uid,
            gid: meta.user.gid,
            home: meta.user.home.to_string_lossy().into_owned(),
        },
        sudo: meta.sudo,
        nested_user_namespaces: meta.nested_user_namespaces,
        host_mounts: spec
            .mounts
            .iter()
            .map(|mount| (mount.source.clone(), mount.target.clone()))
            .collect(),
        // Random for each start: the sandbox's own `boot_id`.
        boot: std::fs::read_to_string("/proc/sys/kernel/random/uuid")
            .unwrap_or_default()
            .trim_end()
            .to_owned(),
    }
}

//! `atoll doctor`: checks the features of this host and names remedies for missing ones.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use atoll_jail::facts::Facts;
use atoll_model::{Bytes, Code, Error, ExecSpec, Network, SandboxSpec};
use atoll_store::DatabaseFile;
use atoll_worker::storage::{self, DiskSpace};
use atoll_worker::template::{BASE, Source, TemplateOptions, TemplateStore};
use atoll_worker::{Config as RuntimeConfig, LocalRuntime, Storage, instance, orphans};
use clap::Args;
use serde::Serialize;

use super::serve;
use super::serve::database::{self, Unknown};
use super::{block_on, paint, print_line};
use crate::cli::borderless_table;
use crate::config::Config;

/// Check which isolation features this machine has, and how to get missing ones.
///
/// The exit code is 1 if sandboxes cannot be created here. The last two checks create a sandbox,
/// and send a packet from a sandbox through this machine.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  atoll doctor
  atoll doctor --json | jq .grade")]
pub(crate) struct Doctor {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Importance of a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Weight {
    /// Sandboxes cannot run without it.
    Required,
    /// Sandboxes run without it, with less isolation or performance.
    Recommended,
}

#[derive(Debug, Serialize)]
struct Check {
    feature: &'static str,
    ok: bool,
    weight: Weight,
    /// Result of the check.
    found: String,
    /// Remedy if the feature is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

#[derive(Debug, Serialize)]
struct Report {
    /// A: all features; B: sandboxes work, but a recommended feature is missing; F: no sandboxes.
    grade: &'static str,
    kernel: String,
    checks: Vec<Check>,
}

impl Doctor {
    pub(crate) fn run(&self, config: &Config) -> Result<ExitCode, Error> {
        let facts = Facts::read();
        let mut checks = features(&facts);
        checks.extend(surroundings(config, &facts));
        let sandbox = trial(config);
        let made = sandbox.ok;
        checks.push(sandbox);
        if made {
            checks.push(egress(config));
        }
        let missing = |weight| {
            checks
                .iter()
                .any(|check| !check.ok && check.weight == weight)
        };
        let grade = match (missing(Weight::Required), missing(Weight::Recommended)) {
            (true, _) => "F",
            (false, true) => "B",
            (false, false) => "A",
        };
        let report = Report {
            grade,
            kernel: facts.release,
            checks,
        };
        if self.json {
            let text = serde_json::to_string_pretty(&report);
            print_line(&text.map_err(|error| Error::new(Code::Internal, error.to_string()))?);
        } else {
            show(&report);
        }
        Ok(if grade == "F" {
            ExitCode::from(1)
        } else {
            ExitCode::SUCCESS
        })
    }
}

fn show(report: &Report) {
    let mut table = borderless_table();
    for check in &report.checks {
        let mark = match (check.ok, check.weight) {
            (true, _) => paint("32", "yes"),
            (false, Weight::Recommended) => paint("33", "no"),
            (false, Weight::Required) => paint("31", "NO"),
        };
        table.add_row([mark, check.feature.to_owned(), check.found.clone()]);
    }
    print_line(&table.to_string());
    for check in report.checks.iter().filter(|check| !check.ok) {
        if let Some(remedy) = &check.remedy {
            print_line(&format!("  {}: {remedy}", check.feature));
        }
    }
    let meaning = match report.grade {
        "A" => "everything is there",
        "B" => "sandboxes work; something recommended is missing",
        _ => "sandboxes cannot be made on this machine",
    };
    print_line(&format!(
        "\nGrade {}: {meaning} (Linux {})",
        report.grade, report.kernel
    ));
}

fn features(facts: &Facts) -> Vec<Check> {
    let check = |feature, ok: bool, found: String, remedy: &str| Check {
        feature,
        ok,
        weight: Weight::Required,
        found,
        remedy: (!ok).then(|| remedy.to_owned()),
    };
    let known = |name: &str| facts.filesystems.iter().any(|kind| kind == name);
    let yes = |ok: bool, good: &str, bad: &str| if ok { good } else { bad }.to_owned();
    let (major, minor) = atoll_jail::plan::OLDEST_KERNEL;
    let new_enough = facts.kernel >= (major, minor);
    let mut checks = vec![
        check(
            "root",
            facts.root,
            yes(
                facts.root,
                "root of the initial user namespace",
                "not root of the initial user namespace",
            ),
            "run atoll as root, outside of other containers (rootless mode is not there yet)",
        ),
        check(
            "kernel",
            new_enough,
            format!("Linux {}, oldest possible {major}.{minor}", facts.release),
            "boot a newer kernel",
        ),
        check(
            "user namespaces",
            facts.user_namespaces,
            yes(
                facts.user_namespaces,
                "every sandbox has ids of its own",
                "user.max_user_namespaces is 0",
            ),
            "sysctl -w user.max_user_namespaces=65536",
        ),
        check(
            "system call filters",
            facts.seccomp,
            yes(facts.seccomp, "seccomp", "the kernel has no seccomp"),
            "boot a kernel with CONFIG_SECCOMP_FILTER",
        ),
        check(
            "overlay",
            known("overlay"),
            yes(
                known("overlay"),
                "root file systems share a template",
                "the kernel does not know overlayfs",
            ),
            "modprobe overlay",
        ),
    ];
    let cgroups = &facts.cgroups;
    let v2 = cgroups.v2.is_some();
    checks.push(check(
        "control groups",
        v2,
        cgroups
            .v2
            .as_ref()
            .map_or("no cgroup2 hierarchy is mounted".into(), |path| {
                format!("cgroup2 at {}", path.display())
            }),
        "mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 none /sys/fs/cgroup/unified",
    ));
    for (controller, feature) in [
        ("memory", "memory limits"),
        ("cpu", "cpu limits"),
        ("pids", "process limits"),
    ] {
        let v1 = cgroups.v1.contains_key(controller);
        let v2 = cgroups
            .v2_controllers
            .iter()
            .any(|known| known == controller);
        let swap = match (controller, cgroups.swap) {
            ("memory", true) => ", swap included",
            ("memory", false) => "; what is swapped out is not counted",
            _ => "",
        };
        let found = match (v1, v2) {
            (true, _) => format!("by cgroup v1{swap}"),
            (_, true) => format!("by cgroup v2{swap}"),
            _ => "no hierarchy has the controller".into(),
        };
        let remedy = format!("boot with cgroup_enable={controller}");
        checks.push(check(feature, v1 || v2, found, &remedy));
    }
    checks
}

/// Checks that do not concern isolation.
fn surroundings(config: &Config, facts: &Facts) -> Vec<Check> {
    let recommended = |feature, ok: bool, found: String, remedy: String| Check {
        feature,
        ok,
        weight: Weight::Recommended,
        found,
        remedy: (!ok).then_some(remedy),
    };
    let data = config.data.display();
    let mut checks = Vec::new();
    if let Ok(space) = DiskSpace::for_path(nearest(&config.data)) {
        let DiskSpace { free, reserve, .. } = space;
        let enough = space.available() >= Bytes(1 << 30);
        let remedy = format!("free some space for {data}, or set ATOLL_DATA_DIR");
        checks.push(recommended(
            "disk space",
            enough,
            format!("{free} free for {data}, {reserve} of it reserved for the host"),
            remedy,
        ));
    }
    let possible = storage::check_host(Storage::Image, facts);
    let used = serve::storage::choose(config.storage, &config.data);
    let found = match (&possible, used) {
        (Ok(()), Storage::Image) => {
            format!("enforced by `atoll serve` on {data}, with the storage image")
        }
        (Ok(()), Storage::Plain) => format!(
            "advisory for `atoll serve` on {data}, with the storage plain; enforced by `atoll serve --storage image` and `atoll run --disk`"
        ),
        (Err(error), Storage::Image) => {
            format!(
                "a server on {data} has the storage image, and {}",
                error.message
            )
        }
        (Err(error), Storage::Plain) => format!("advisory: {}", error.message),
    };
    let remedy = possible
        .as_ref()
        .err()
        .and_then(|error| error.remedy.clone());
    checks.push(recommended(
        "disk limits",
        possible.is_ok(),
        found,
        remedy.unwrap_or_default(),
    ));
    checks.extend(database(config));
    checks.extend(set_aside(config));
    checks.extend(stale_networks());
    checks.extend(exceptions(config));
    let sudo = Path::new("/usr/bin/sudo").exists();
    checks.push(recommended(
        "sudo in base",
        sudo,
        if sudo {
            "the user of a sandbox can become its root"
        } else {
            "this machine has no sudo"
        }
        .into(),
        "apt-get install sudo && atoll template rebuild base".into(),
    ));
    checks
}

/// Checks whether a server would start on the data directory, and whether it would trust the clock.
/// No checks if the data directory was never used by a server.
fn database(config: &Config) -> Vec<Check> {
    let check = |feature, ok, found, remedy: Option<String>| Check {
        feature,
        ok,
        weight: Weight::Recommended,
        found,
        remedy,
    };
    let url = config.database_url.as_deref().map(database::parse_url);
    let url = match url.transpose() {
        Ok(url) => url,
        Err(error) => return vec![check("database", false, error.message, error.remedy)],
    };
    let location = database::Location::new(&config.data, url.as_ref());
    let identity = match block_on(location.check(Unknown::Refuse)) {
        Ok(DatabaseFile::Missing | DatabaseFile::Empty) => return Vec::new(),
        Ok(DatabaseFile::Database(identity)) => identity,
        Err(error) => return vec![check("database", false, error.message, error.remedy)],
    };
    let found = "belongs to its data directory".to_owned();
    let mut checks = vec![check("database", true, found, None)];
    if let Some(recorded) = &identity.clock
        && let Some(difference) = atoll_core::unexplained_difference(recorded)
    {
        let until = recorded
            .held_until
            .and_then(|until| jiff::Timestamp::from_microsecond(until).ok())
            .map(|until| format!(" (until {until:.0} by the server's time)"));
        let found = format!(
            "{:#} {} what the server recorded last; it ends and deletes nothing for 15 minutes{}",
            jiff::SignedDuration::from_secs(difference.abs()),
            if difference < 0 { "behind" } else { "ahead of" },
            until.unwrap_or_default()
        );
        let remedy = "look at the clock (date; timedatectl) and set it if it is wrong; if it is right, do nothing";
        checks.push(check("clock", false, found, Some(remedy.into())));
    }
    checks
}

/// Reports sandboxes without a row in the database, if any.
fn set_aside(config: &Config) -> Option<Check> {
    let all = orphans::list(&config.data);
    let oldest = all.first()?;
    let day = Duration::from_hours(24).as_micros() as i64;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let age = now.map_or(0, |now| now.as_micros() as i64 - oldest.orphaned_at) / day;
    let left = (orphans::RETENTION.as_micros() as i64 / day - age).max(0);
    Some(Check {
        feature: "lost sandboxes",
        ok: true,
        weight: Weight::Recommended,
        found: format!(
            "{} set aside in {}, of which no server knows; the oldest is removed in {left} days",
            all.len(),
            config.data.join("orphaned").display()
        ),
        remedy: None,
    })
}

/// Reports network rules and links that killed instances left behind, if any.
fn stale_networks() -> Option<Check> {
    // Without root the kernel shows no rules, and the check "root" says so.
    let tags = instance::stale_networks().ok()?;
    (!tags.is_empty()).then(|| Check {
        feature: "stale networks",
        ok: false,
        weight: Weight::Recommended,
        found: format!(
            "network rules and links of {} ended instance{} are still there: {}",
            tags.len(),
            if tags.len() == 1 { "" } else { "s" },
            tags.join(", ")
        ),
        remedy: Some("atoll gc".into()),
    })
}

/// Reports private addresses that the operator opened to sandboxes, if any.
fn exceptions(config: &Config) -> Option<Check> {
    let all = serve::exceptions::read(&config.data);
    (!all.is_empty()).then(|| Check {
        feature: "egress exceptions",
        ok: true,
        weight: Weight::Recommended,
        found: format!(
            "sandboxes of {} with a network also reach {} (--egress-allow)",
            config.data.display(),
            all.join(", ")
        ),
        remedy: None,
    })
}

/// The closest ancestor directory that exists.
fn nearest(path: &Path) -> &Path {
    path.ancestors()
        .find(|path| path.exists())
        .unwrap_or(Path::new("/"))
}

/// Creates and deletes a sandbox from `base`, or from an empty template if `base` does not exist
/// yet.
fn trial(config: &Config) -> Check {
    let begin = Instant::now();
    let result = attempt(config, Network::None);
    let ok = result.is_ok();
    let remedy = result.as_ref().err().and_then(|error| error.remedy.clone());
    Check {
        feature: "a sandbox",
        ok,
        weight: Weight::Required,
        found: match &result {
            Ok(total) => format!("made in {total:.1?}, all in all {:.0?}", begin.elapsed()),
            Err(error) => error.message.clone(),
        },
        remedy: (!ok).then(|| remedy.unwrap_or("see what is missing above".into())),
    }
}

/// Sends a packet from a sandbox through this machine's forwarding to a network namespace of the
/// test.
fn egress(config: &Config) -> Check {
    let forwards = || std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward");
    let before = forwards().is_ok_and(|text| text.trim() == "1");
    let result = attempt(config, Network::Internet);
    let ok = result.is_ok();
    let remedy = result.as_ref().err().and_then(|error| error.remedy.clone());
    Check {
        feature: "network internet",
        ok,
        weight: Weight::Recommended,
        found: match &result {
            Ok(took) if before => format!("a connection went through this machine in {took:.1?}"),
            Ok(took) => format!(
                "a connection went through this machine in {took:.1?}; net.ipv4.ip_forward was turned on for it"
            ),
            Err(error) => error.message.clone(),
        },
        remedy: (!ok).then(|| remedy.unwrap_or("see what is said above".into())),
    }
}

/// Creates a sandbox and tests its network.
fn attempt(config: &Config, network: Network) -> Result<Duration, Error> {
    let templates = TemplateStore::open(config.templates());
    if templates.is_ok_and(|store| store.get(BASE).is_ok()) {
        make_one(&config.data, config.templates(), BASE, network)
    } else {
        make_empty(config, network)
    }
}

/// Creates a sandbox from an empty template in a temporary data directory.
fn make_empty(config: &Config, network: Network) -> Result<Duration, Error> {
    instance::data_directory(&config.data)?;
    let directory = config.data.join(format!("doctor-{}", std::process::id()));
    instance::data_directory(&directory)?;
    let empty = directory.join("empty");
    let made = std::fs::create_dir_all(&empty)
        .map_err(|error| Error::new(Code::Internal, format!("make {}: {error}", empty.display())))
        .and_then(|()| Ok(TemplateStore::open(directory.join("templates"))?))
        .and_then(|store| {
            let source = Source::Directory(empty);
            let added = store.add("empty", &source, &TemplateOptions::default(), &mut |_| {});
            Ok(added?)
        })
        .and_then(|_| make_one(&directory, directory.join("templates"), "empty", network));
    let _ = std::fs::remove_dir_all(&directory);
    made
}

/// Duration of the create; with a network, of a connection.
fn make_one(
    data: &Path,
    templates: PathBuf,
    template: &str,
    network: Network,
) -> Result<Duration, Error> {
    block_on(async {
        let runtime = LocalRuntime::open(RuntimeConfig {
            templates,
            ..RuntimeConfig::new(data)
        })
        .await?;
        let spec = SandboxSpec {
            template: template.into(),
            network,
            ..SandboxSpec::default()
        };
        let tried = async {
            let made = runtime.create(spec).await?;
            if network == Network::Internet {
                return runtime.check_egress(&made.id).await;
            }
            if template == BASE {
                let exec = runtime
                    .exec(&made.id, ExecSpec::argv(["/bin/true"]))
                    .await?;
                let status = exec.wait().await;
                if !status.success() {
                    let message = format!("/bin/true ended with {status:?}");
                    return Err(Error::new(Code::Internal, message));
                }
            }
            Ok(made.timings.total())
        };
        let tried = tried.await;
        let closed = runtime.close().await;
        let total = tried?;
        closed?;
        Ok(total)
    })
}

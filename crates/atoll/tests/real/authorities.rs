//! Certificate authorities of the operator: trusted in every sandbox, without another template.

use std::path::{Path, PathBuf};

use atoll_model::{ExecSpec, SandboxId, SandboxSpec};
use atoll_testkit::{Scratch, run_within, wait_for};
use atoll_worker::{Config, LocalRuntime};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::api::Server;
use crate::cli::{atoll, output_text};
use crate::harness::{self, DEADLINE, Kind, World, probe_spec, stdout_text};

/// An authority in a file, and a certificate that it signed.
struct Authority {
    scratch: Scratch,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let scratch = Scratch::new();
        let named = |names: Vec<String>, name: &str| {
            let mut params = CertificateParams::new(names).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            params
        };
        // Two certificates of one name would differ only in their keys.
        let name = format!("authority of {}", scratch.path().display());
        let mut params = named(Vec::new(), &name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        // As PEM of other programs: without carriage returns.
        let pem = params.self_signed(&key).unwrap().pem();
        let pem = pem.replace('\r', "");
        std::fs::write(scratch.join("ca.pem"), &pem).unwrap();
        let issuer = Issuer::new(params, key);
        let leaf = named(vec!["test.example".into()], "test.example");
        let leaf = leaf.signed_by(&KeyPair::generate().unwrap(), &issuer);
        std::fs::write(scratch.join("leaf.pem"), leaf.unwrap().pem()).unwrap();
        Self { scratch, pem }
    }

    fn file(&self) -> PathBuf {
        self.scratch.join("ca.pem")
    }

    /// A line that prints `leaf.pem: OK` if a program trusts what the authority signed, by the variable and by the
    /// system's bundle; the certificate is in the line.
    fn verify(&self, variable: &str) -> String {
        let leaf = std::fs::read_to_string(self.scratch.join("leaf.pem")).unwrap();
        format!(
            "cd /tmp && printf '%s' '{leaf}' > leaf.pem && openssl verify -CAfile \"{variable}\" leaf.pem"
        )
    }
}

const SYSTEM: &str = "/etc/ssl/certs/ca-certificates.crt";

async fn shell(runtime: &LocalRuntime, id: &SandboxId, line: &str) -> String {
    let exec = runtime.exec(id, ExecSpec::shell(line)).await.unwrap();
    let done = exec.finish(b"", 1 << 20).await.unwrap();
    let complaint = String::from_utf8_lossy(&done.stderr).into_owned();
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{line}: {text}{complaint}");
    text
}

async fn trusted(runtime: &LocalRuntime, id: &SandboxId, authority: &Authority) {
    for variable in [
        "$SSL_CERT_FILE",
        "$NODE_EXTRA_CA_CERTS",
        "$PIP_CERT",
        SYSTEM,
    ] {
        let output = shell(runtime, id, &authority.verify(variable)).await;
        assert_eq!(output, "leaf.pem: OK\n", "{variable}");
    }
}

fn serving(data: &Path, authorities: &[&Authority]) -> Config {
    Config {
        binary: harness::binary(),
        templates: harness::data().join("templates"),
        warm_count: 2,
        authorities: authorities.iter().map(|it| it.pem.clone()).collect(),
        ..Config::serving(data)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_sandbox_trusts_the_configured_authorities() {
    tokio::task::spawn_blocking(harness::templates)
        .await
        .unwrap();
    let (authority, other) = (Authority::new(), Authority::new());
    let scratch = Scratch::new();
    let data = scratch.join("data");
    harness::private(&data);
    let open = async |all: &[&Authority]| LocalRuntime::open(serving(&data, all)).await.unwrap();
    let runtime = open(&[&authority]).await;
    // A new sandbox, and a warm one.
    let first = runtime.create(SandboxSpec::default()).await.unwrap().id;
    trusted(&runtime, &first, &authority).await;
    while runtime.pool_sizes().0 == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let warm = runtime.create(SandboxSpec::default()).await.unwrap().id;
    trusted(&runtime, &warm, &authority).await;

    // Variables of the sandbox and of a command take precedence; sudo preserves ours.
    let own = SandboxSpec {
        environment: [("AWS_CA_BUNDLE".to_owned(), "/mine".to_owned())].into(),
        ..SandboxSpec::default()
    };
    let own = runtime.create(own).await.unwrap().id;
    assert_eq!(
        shell(&runtime, &own, "echo $AWS_CA_BUNDLE").await,
        "/mine\n"
    );
    let mut exec = ExecSpec::shell("echo $SSL_CERT_FILE");
    exec.environment = vec![(b"SSL_CERT_FILE".into(), b"/other".into())];
    let exec = runtime.exec(&own, exec).await.unwrap();
    assert_eq!(exec.finish(b"", 100).await.unwrap().stdout, b"/other\n");
    if Path::new("/usr/bin/sudo").exists() {
        let output = shell(&runtime, &own, "sudo sh -c 'echo $SSL_CERT_FILE'").await;
        assert_eq!(output, format!("{SYSTEM}\n"));
    }
    // A sandbox's changes to its bundle affect no other, and the system's tool keeps the authority.
    if Path::new("/usr/sbin/update-ca-certificates").exists() {
        shell(&runtime, &own, "sudo update-ca-certificates --fresh >&2").await;
        trusted(&runtime, &own, &authority).await;
    }
    shell(&runtime, &own, &format!("echo | sudo tee {SYSTEM}")).await;
    trusted(&runtime, &first, &authority).await;
    runtime.stop(&own).await.unwrap();
    runtime.close().await.unwrap();

    // A server with another authority: running sandboxes keep their certificates, started ones get the new ones.
    let runtime = open(&[&other]).await;
    trusted(&runtime, &first, &authority).await;
    runtime.stop(&first).await.unwrap();
    runtime.start(&first).await.unwrap();
    trusted(&runtime, &first, &other).await;
    let new = runtime.create(SandboxSpec::default()).await.unwrap().id;
    trusted(&runtime, &new, &other).await;
    runtime.close().await.unwrap();

    // A server without authorities.
    let runtime = open(&[]).await;
    trusted(&runtime, &warm, &authority).await;
    let plain = runtime.create(SandboxSpec::default()).await.unwrap().id;
    assert_eq!(shell(&runtime, &plain, "echo $SSL_CERT_FILE").await, "\n");
    for info in runtime.list() {
        runtime.delete(&info.id).await.unwrap();
    }
    let tag = runtime.tag().to_owned();
    runtime.close().await.unwrap();
    // Layers that no sandbox uses are removed at a start.
    let runtime = open(&[]).await;
    let left = std::fs::read_dir(data.join("authorities")).unwrap().count();
    assert_eq!(left, 0);
    runtime.close().await.unwrap();
    wait_for("the keeper's end", DEADLINE, || {
        crate::restart::keeper(&tag).is_none()
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn template_without_a_ca_bundle_gets_a_bundle() {
    let authority = Authority::new();
    let world = World::open_as(|config| config.authorities = vec![authority.pem.clone()]).await;
    let id = world.sandbox(Kind::Static).await;
    let done = world.exec(&id, probe_spec(&["read", SYSTEM])).await;
    assert!(stdout_text(&done).ends_with(&authority.pem));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_terminals_and_runs_have_the_ca_variables() {
    let authority = Authority::new();
    let file = authority.file();
    let file = file.to_str().unwrap();
    let server = Server::start_with(&["--ca-file", file]).await;
    let client = server.client();
    let made = client.post("/sandboxes", &serde_json::json!({})).await;
    let id = made.json()["sandboxID"].as_str().unwrap().to_owned();
    let line = authority.verify("$REQUESTS_CA_BUNDLE");
    let body = serde_json::json!({ "cmd": line });
    let path = format!("/sandboxes/{id}/commands");
    let result = client.post(&path, &body).await.json();
    assert_eq!(result["stdout"], "leaf.pem: OK\n", "{result}");
    let status = client.delete(&format!("/sandboxes/{id}")).await.status;
    assert_eq!(status, 204);
    server.close().await;

    let mut run = atoll(&["run", "--ca-file", file, "--", "sh", "-c", &line]);
    let done = run_within(&mut run, DEADLINE, b"");
    assert_eq!(output_text(&done), "leaf.pem: OK\nexit 0");
}

#[test]
fn invalid_authorities_file_prevents_the_start() {
    let scratch = Scratch::new();
    let file = scratch.join("ca.pem");
    std::fs::write(&file, "no certificate").unwrap();
    let file = file.to_str().unwrap();
    for words in [
        &["serve", "--ca-file", file][..],
        &["run", "--ca-file", file, "--", "true"],
    ] {
        let mut command = atoll(words);
        command.env("ATOLL_DATA_DIR", scratch.join("data"));
        let done = run_within(&mut command, DEADLINE, b"");
        let text = output_text(&done);
        assert!(!done.status.success(), "{text}");
        assert!(
            text.contains(file) && text.contains("no certificate"),
            "{text}"
        );
    }
}

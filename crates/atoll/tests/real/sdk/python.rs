//! The SDK for Python, tested by its language's own tools, which start servers themselves.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use atoll_testkit::{Scratch, run_within};

use crate::harness::{World, binary, data};

/// Time limit of each test: shorter than the runner's, so that a hanging test reports where.
const DEADLINE: Duration = Duration::from_secs(280);

/// Path where `deploy/setup test` installs Python packages.
pub fn tools(name: &str) -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache");
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|cache| !cache.is_empty());
    let place = cache
        .map_or_else(home, PathBuf::from)
        .join("atoll")
        .join(name);
    assert!(
        place.join("installed").exists(),
        "the tools are not at {}: run `deploy/setup test`",
        place.display()
    );
    place
}

/// Runs a tool of Python's in the SDK's directory, and leaves nothing there.
async fn python(words: &'static [&'static str]) {
    World::open().await.close().await;
    let scratch = Scratch::new();
    let mut command = Command::new(tools("sdk-python").join("bin/python"));
    command
        .args(["-B", "-m"])
        .args(words)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdks/python"))
        .env("PYTHONPATH", "src")
        .env("ATOLL_BIN", binary())
        .env("ATOLL_TEMPLATES_DIR", data().join("templates"))
        // Cache directories of the tools.
        .env("TMPDIR", scratch.path())
        .env("MYPY_CACHE_DIR", scratch.join("mypy"))
        .env("RUFF_NO_CACHE", "true");
    for name in ["ATOLL_URL", "ATOLL_API_KEY", "XDG_CONFIG_HOME"] {
        command.env_remove(name);
    }
    let ran = tokio::task::spawn_blocking(move || run_within(&mut command, DEADLINE, b""));
    let output = ran.await.unwrap();
    assert!(
        output.status.success(),
        "{words:?}: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

macro_rules! pythons {
    ($( $fact:ident => $words:expr; )*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $fact() {
            python(&$words).await;
        }
    )*};
}

pythons! {
    python_sdk_passes_its_tests => ["pytest", "-q", "tests", "--deselect", "tests/test_away.py"];
    python_sdk_survives_unreachable_servers => ["pytest", "-q", "tests/test_away.py"];
    python_sdk_passes_mypy => ["mypy"];
    python_sdk_passes_ruff => ["ruff", "check", "."];
    python_sdk_is_formatted => ["ruff", "format", "--check", "."];
    generated_python_sdk_files_are_current => ["generate", "--check"];
}

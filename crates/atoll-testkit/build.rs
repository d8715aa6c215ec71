//! Builds the probe: one static program that a template can consist of. Cargo cannot build a static binary as part of a
//! dynamic workspace, so this calls the compiler itself.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name} for build scripts"))
}

fn main() {
    println!("cargo::rerun-if-changed=probe");
    println!("cargo::rerun-if-changed=build.rs");
    let output = PathBuf::from(variable("OUT_DIR")).join("probe");
    let status = Command::new(variable("RUSTC"))
        .args([
            "--edition",
            "2024",
            "--crate-name",
            "probe",
            "--crate-type",
            "bin",
        ])
        .args(["--target", &variable("TARGET"), "-O", "-D", "warnings"])
        .args([
            "-C",
            "target-feature=+crt-static",
            "-C",
            "relocation-model=static",
        ])
        .args([
            "-C",
            "panic=abort",
            "-C",
            "lto=fat",
            "-C",
            "codegen-units=1",
            "-C",
            "strip=symbols",
        ])
        .arg("-o")
        .arg(&output)
        .arg("probe/main.rs")
        .status()
        .expect("the compiler starts");
    assert!(
        status.success(),
        "the probe did not compile; it needs the static C library (libc.a, of libc6-dev)"
    );
}

//! Layers for templates of many forms.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use super::Authorities;
use crate::template::{Source, Template, TemplateOptions, TemplateStore};

const ADDED: &str = "-----BEGIN CERTIFICATE-----\nadded\n-----END CERTIFICATE-----\n";

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
    fs::write(path, text).expect("written");
}

/// A template with the given files, and authorities to layer on it.
struct Fixture {
    scratch: tempfile::TempDir,
    template: Template,
    authorities: Authorities,
}

impl Fixture {
    fn new(fill: impl FnOnce(&Path), env: &[(&str, &str)]) -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        let tree = scratch.path().join("tree");
        fs::create_dir(&tree).expect("a directory");
        fill(&tree);
        let store = TemplateStore::open(scratch.path().join("templates")).expect("a store");
        let options = TemplateOptions {
            env: env
                .iter()
                .map(|(k, v)| ((*k).into(), (*v).into()))
                .collect(),
            ..TemplateOptions::default()
        };
        let added = store.add("one", &Source::Directory(tree), &options, &mut |_| {});
        added.expect("a template");
        let template = store.get("one").expect("a template");
        let authorities = Authorities::new(scratch.path(), &[ADDED.to_owned()]);
        Self {
            template,
            authorities: authorities.expect("authorities"),
            scratch,
        }
    }

    /// Path of the bundle in sandboxes, and the contents of files of the layer.
    fn layer_files(&self, names: &[&str]) -> (String, Vec<Option<String>>) {
        let layer = self.authorities.layer(&self.template).expect("a layer");
        let layer = layer.expect("a layer");
        let at = self.authorities.server_directory();
        let at = at.join(self.template.meta.id.as_ref().expect("an id"));
        let read = |name: &&str| fs::read_to_string(at.join(name)).ok();
        let bundle = layer.record().bundle.clone();
        (bundle, names.iter().map(read).collect())
    }
}

#[test]
fn template_bundle_is_extended_in_place() {
    const DEBIAN: &str = "etc/ssl/certs/ca-certificates.crt";
    let fixture = Fixture::new(
        |tree| {
            write(tree, DEBIAN, "of the template");
            write(tree, "usr/local/share/ca-certificates/keep", "");
            let mode = fs::Permissions::from_mode(0o751);
            fs::set_permissions(tree.join("etc/ssl"), mode).expect("a mode");
        },
        &[],
    );
    let own = "usr/local/share/ca-certificates/atoll-1.crt";
    let (bundle, found) = fixture.layer_files(&[DEBIAN, own, "etc/sudoers.d/atoll-authorities"]);
    assert_eq!(bundle, format!("/{DEBIAN}"));
    let extended = format!("of the template\n{ADDED}");
    assert_eq!(found, [Some(extended), Some(ADDED.into()), None]);
    let at = fixture.authorities.server_directory();
    let at = at.join(fixture.template.meta.id.as_ref().expect("an id"));
    let found = fs::metadata(at.join("etc/ssl")).expect("a directory");
    assert_eq!(found.mode() & 0o7777, 0o751);
    // The template's own file is unchanged.
    let own = fs::read_to_string(fixture.template.layer.join(DEBIAN));
    assert_eq!(own.expect("a file"), "of the template");
    let other = fixture.authorities.layer(&fixture.template);
    assert!(other.expect("the same").is_some(), "made once");
}

#[test]
fn bundle_behind_symlinks_is_extended_at_its_target() {
    let fixture = Fixture::new(
        |tree| {
            write(tree, "etc/pki/ca-trust/extracted/pem/tls.pem", "fedora\n");
            fs::create_dir_all(tree.join("etc/pki/tls/certs")).expect("directories");
            let link = tree.join("etc/pki/tls/certs/ca-bundle.crt");
            symlink("/etc/pki/ca-trust/extracted/pem/tls.pem", link).expect("a link");
            fs::create_dir_all(tree.join("etc/ssl")).expect("directories");
            symlink("../pki/tls/certs", tree.join("etc/ssl/certs")).expect("a link");
            fs::create_dir_all(tree.join("etc/sudoers.d")).expect("directories");
        },
        &[],
    );
    let (bundle, found) = fixture.layer_files(&[
        "etc/pki/ca-trust/extracted/pem/tls.pem",
        "etc/pki/tls/certs/ca-bundle.crt",
        "etc/sudoers.d/atoll-authorities",
        "etc/atoll-authorities.env",
    ]);
    assert_eq!(bundle, "/etc/pki/tls/certs/ca-bundle.crt");
    assert_eq!(found[0], Some(format!("fedora\n{ADDED}")));
    assert_eq!(found[1], None);
    assert!(found[2].as_ref().expect("a setting").contains("env_file="));
    assert!(found[3].as_ref().expect("variables").contains(&bundle));
}

#[test]
fn bundle_named_by_template_variables_is_extended() {
    let fixture = Fixture::new(
        |tree| write(tree, "nix/store/cacert/bundle.crt", "nix\n"),
        &[("SSL_CERT_FILE", "/nix/store/cacert/bundle.crt")],
    );
    let (bundle, found) = fixture.layer_files(&["nix/store/cacert/bundle.crt"]);
    assert_eq!(bundle, "/nix/store/cacert/bundle.crt");
    assert_eq!(found, [Some(format!("nix\n{ADDED}"))]);
}

#[test]
fn template_without_a_bundle_gets_one() {
    let fixture = Fixture::new(|_| {}, &[]);
    let (bundle, found) = fixture.layer_files(&["etc/ssl/certs/ca-certificates.crt"]);
    assert_eq!(bundle, "/etc/ssl/certs/ca-certificates.crt");
    assert!(found[0].as_ref().expect("a bundle").ends_with(ADDED));
}

#[test]
fn hostile_template_cannot_make_us_read_outside_it() {
    let fixture = Fixture::new(
        |tree| {
            fs::create_dir_all(tree.join("etc/ssl/certs")).expect("directories");
            let up = "../".repeat(20);
            for (name, target) in [
                ("etc/ssl/certs/ca-certificates.crt", format!("{up}secret")),
                ("etc/ssl/ca-bundle.pem", "/proc/self/environ".into()),
                ("etc/ssl/cert.pem", "/etc/ssl/cert.pem".into()),
                ("etc/sudoers.d", "/proc/1/root".into()),
            ] {
                symlink(target, tree.join(name)).expect("a link");
            }
            // The target of the first link as resolved in a sandbox.
            rustix::fs::mknodat(
                rustix::fs::CWD,
                tree.join("secret"),
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::from_raw_mode(0o644),
                0,
            )
            .expect("a FIFO");
        },
        &[],
    );
    fs::write(fixture.scratch.path().join("secret"), "of the host").expect("written");
    let (bundle, found) = fixture.layer_files(&["etc/ssl/certs/ca-certificates.crt"]);
    assert_eq!(bundle, "/etc/ssl/certs/ca-certificates.crt");
    let text = found[0].as_ref().expect("a bundle");
    assert!(text.ends_with(ADDED) && !text.contains("of the host"));
}

#[test]
fn layers_of_other_servers_stay_while_in_use() {
    let fixture = Fixture::new(|_| {}, &[]);
    fixture.layer_files(&[]);
    let all = fixture.scratch.path().join("authorities");
    for name in ["used", "unused"] {
        write(&all, &format!("{name}/layer/etc/file"), "");
    }
    fixture.authorities.sweep(&["used".to_owned()].into());
    let mut left: Vec<_> = fs::read_dir(&all).expect("a directory").flatten().collect();
    left.retain(|entry| entry.file_name() != "used");
    assert_eq!(left.len(), 1);
    assert!(fixture.authorities.server_directory().exists());
}

use super::*;

const PASSWD: &str = "\
root:secrethash:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
user:x:200:200:a clash:/nonexistent:/bin/false
_apt:x:42:65534::/nonexistent:/usr/sbin/nologin
far:x:300:70000::/:/bin/false
alice:x:1000:1000:Alice:/home/alice:/bin/bash
bob:x:70001:70001:Bob:/home/bob:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
+nis::::::
";

const GROUP: &str = "\
root:x:0:
shadow:x:43:
sudo:x:27:alice,daemon
user:x:200:
alice:x:1000:
nogroup:x:65534:
";

/// A small system with everything that must not get into a template.
fn host(root: &Path) {
    fs::create_dir_all(root.join("usr")).unwrap();
    write(root, "usr/bin/bash", "bash", 0o755);
    write(root, "usr/bin/sudo", "sudo", 0o4755);
    write(root, "usr/bin/python3", "python", 0o755);
    write(root, "usr/bin/hidden-setuid", "SECRET", 0o4711);
    write(root, "usr/bin/owned", "owned", 0o755);
    chown(root.join("usr/bin/owned"), Some(70_000), Some(0)).unwrap();
    write(root, "usr/local/bin/script", "script", 0o755);
    write(root, "usr/local/private", "SECRET", 0o700);
    write(root, "usr/local/etc/npmrc", "SECRET", 0o644);
    write(root, "usr/share/private/file", "SECRET", 0o644);
    fs::set_permissions(
        root.join("usr/share/private"),
        fs::Permissions::from_mode(0o750),
    )
    .unwrap();
    write(root, "usr/lib/modules/6.1/driver.ko", "driver", 0o644);
    write(root, "usr/src/linux-headers-6.1/file.h", "header", 0o644);
    write(root, "usr/src/other/file.h", "header", 0o644);
    fs::create_dir_all(root.join("usr/sbin")).unwrap();
    rustix::fs::mkfifoat(
        rustix::fs::CWD,
        root.join("usr/lib/fifo"),
        Mode::from(0o666),
    )
    .unwrap();
    symlink("usr/bin", root.join("bin")).unwrap();
    write(root, "lib64/ld.so", "loader", 0o755);
    write(root, "etc/passwd", PASSWD, 0o644);
    write(root, "etc/group", GROUP, 0o644);
    for name in [
        "shadow",
        "gshadow",
        "sudoers",
        "ssl/private/key.pem",
        "security/opasswd",
    ] {
        write(root, &format!("etc/{name}"), "SECRET", 0o640);
    }
    for name in [
        "environment",
        "npmrc",
        "pip.conf",
        "gitconfig",
        "hosts",
        "fstab",
        "ssh/ssh_config",
        "apt/auth.conf",
        "apt/auth.conf.d/x",
    ] {
        write(root, &format!("etc/{name}"), "SECRET", 0o644);
    }
    write(
        root,
        "etc/apt/sources.list.d/private.list",
        "deb https://me:SECRET@example.org/ x main\n",
        0o644,
    );
    write(
        root,
        "etc/apt/sources.list",
        "deb http://deb.debian.org/debian x main # mail@example.org\n",
        0o644,
    );
    write(root, "etc/ssl/certs/ca.pem", "certificate", 0o644);
    write(root, "etc/python3.11/sitecustomize.py", "", 0o644);
    write(root, "etc/skel/.profile", "profile", 0o644);
    write(root, "etc/profile", PROFILE, 0o644);
    write(root, "etc/default/locale", "LANG=C", 0o644);
    write(root, "etc/default/service", "SECRET", 0o644);
    write(root, "var/lib/dpkg/status", "status", 0o644);
    write(root, "var/lib/dpkg/lock", "SECRET", 0o640);
    write(root, "var/lib/secret/file", "SECRET", 0o644);
    write(root, "var/cache/debconf/config.dat", "config", 0o644);
    write(root, "var/cache/debconf/passwords.dat", "SECRET", 0o600);
    write(root, "home/alice/file", "SECRET", 0o644);
    write(root, "opt/file", "SECRET", 0o644);
}

/// The beginning of Debian's profile.
const PROFILE: &str = "if [ \"$(id -u)\" -eq 0 ]; then\n  PATH=/root\nelse\n  PATH=/user\nfi\n";

fn build() -> (Fixture, Report) {
    let mut fixture = Fixture::new();
    host(&fixture.path("host"));
    let root = fixture.path("host");
    fixture.store = fixture.store.with_host_root(root);
    let report = fixture.store.rebuild_base(&mut no_progress()).unwrap();
    (fixture, report)
}

/// Visits every file below `root` with its path in it.
fn files(root: &Path, at: &Path, visit: &mut dyn FnMut(&Path, &fs::Metadata)) {
    for entry in fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        let meta = fs::symlink_metadata(&path).unwrap();
        visit(path.strip_prefix(root).unwrap(), &meta);
        if meta.is_dir() {
            files(root, &path, visit);
        }
    }
}

#[test]
fn login_shell_of_base_does_not_run_id() {
    let (fixture, _) = build();
    let profile = fixture.layer("base").join("etc/profile");
    let text = fs::read_to_string(&profile).unwrap();
    assert_eq!(text, PROFILE.replace("$(id -u)", "${EUID:-$(id -u)}"));
    // The host's file is unchanged.
    let host = fixture.path("host").join("etc/profile");
    assert_eq!(fs::read_to_string(host).unwrap(), PROFILE);
    // Both shells give the same result; `sh`, which has no `EUID`, runs `id`.
    for shell in ["bash", "sh"] {
        let line = format!(". {}; echo $PATH", profile.display());
        let output = Command::new(shell)
            .args(["-c", &line])
            .env_remove("EUID")
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            "/root\n",
            "{shell}"
        );
    }
}

#[test]
fn base_has_no_secret_no_device_and_no_unmapped_id() {
    let (fixture, report) = build();
    let layer = fixture.layer("base");
    let mut found = 0;
    files(&layer, &layer, &mut |name, meta| {
        found += 1;
        assert!(meta.uid() < ID_COUNT && meta.gid() < ID_COUNT, "{name:?}");
        assert!(
            !meta.file_type().is_fifo() && !meta.file_type().is_socket(),
            "{name:?}"
        );
        if meta.is_file() {
            let text = fs::read_to_string(layer.join(name)).unwrap();
            assert!(
                !text.contains("SECRET") && !text.contains("secrethash"),
                "{name:?}"
            );
        }
    });
    assert!(found > 60, "{found}");
    assert!(report.skipped >= 9, "{report:?}");
    for name in [
        "usr/local/private",
        "usr/bin/hidden-setuid",
        "usr/share/private",
        "usr/lib/modules",
        "usr/src/linux-headers-6.1",
        "etc/ssl/private",
        "etc/gshadow",
        "etc/environment",
        "var/lib/dpkg/lock",
        "home/alice",
        "var/lib/secret",
    ] {
        assert!(layer.join(name).symlink_metadata().is_err(), "{name}");
    }
}

#[test]
fn base_has_the_hosts_programs() {
    let (fixture, report) = build();
    let layer = fixture.layer("base");
    let same = |name: &str| {
        fs::metadata(layer.join(name)).unwrap().ino()
            == fs::metadata(fixture.path("host").join(name)).unwrap().ino()
    };
    assert!(same("usr/bin/bash"), "linked");
    assert!(same("lib64/ld.so"), "linked");
    assert!(!same("usr/bin/owned"), "of a foreign owner: copied");
    assert!(!same("usr/local/bin/script"), "edited in place: copied");
    assert!(
        !same("etc/ssl/certs/ca.pem") && !same("var/lib/dpkg/status"),
        "changes: copied"
    );
    assert_eq!(mode(layer.join("usr/bin/sudo")), 0o4755);
    let python = fs::read_link(layer.join("usr/local/bin/python")).unwrap();
    assert_eq!(python, Path::new("/usr/bin/python3"));
    assert_eq!(
        fs::read_link(layer.join("bin")).unwrap(),
        Path::new("usr/bin")
    );
    for name in [
        "usr/src/other/file.h",
        "etc/apt/sources.list",
        "etc/python3.11/sitecustomize.py",
        "etc/default/locale",
        "var/cache/debconf/config.dat",
    ] {
        assert!(layer.join(name).exists(), "{name}");
    }
    assert!(layer.join("usr/local/etc").is_dir());
    assert_eq!(mode(layer.join("tmp")), 0o1777);
    assert_eq!(mode(layer.join("root")), 0o700);
    assert_eq!(
        fs::read_link(layer.join("var/run")).unwrap(),
        Path::new("/run")
    );
    let partial = fs::metadata(layer.join("var/lib/apt/lists/partial")).unwrap();
    assert_eq!((partial.uid(), partial.mode() & 0o7777), (42, 0o700));
    assert!(report.hard_linked >= 4, "{report:?}");
    // The host's own files are unchanged.
    assert_eq!(
        fs::metadata(fixture.path("host/usr/bin/owned"))
            .unwrap()
            .uid(),
        70_000
    );
    assert_eq!(mode(fixture.path("host/usr/bin/sudo")), 0o4755);
}

#[test]
fn base_has_its_own_accounts() {
    let (fixture, _) = build();
    let layer = fixture.layer("base");
    let read = |name: &str| fs::read_to_string(layer.join(name)).unwrap();
    assert_eq!(
        read("etc/passwd"),
        "root:x:0:0:root:/root:/bin/bash\n\
         daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n\
         _apt:x:42:65534::/nonexistent:/usr/sbin/nologin\n\
         far:x:300:65534::/:/bin/false\n\
         nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n\
         user:x:1000:1000::/home/user:/bin/bash\n"
    );
    assert_eq!(
        read("etc/group"),
        "root:x:0:\nshadow:x:43:\nsudo:x:27:daemon\nnogroup:x:65534:\nuser:x:1000:\n"
    );
    assert!(
        read("etc/shadow")
            .lines()
            .all(|line| line.split(':').nth(1) == Some("*"))
    );
    assert_eq!(fs::metadata(layer.join("etc/shadow")).unwrap().gid(), 43);
    assert_eq!(mode(layer.join("etc/shadow")), 0o640);
    assert_eq!(mode(layer.join("etc/sudoers")), 0o440);
    let sudoers = read("etc/sudoers");
    assert!(
        sudoers.contains("\nroot ALL=(ALL:ALL) ALL\n")
            && sudoers.contains("\nuser ALL=(ALL:ALL) NOPASSWD: ALL\n")
    );
    assert_eq!(read("etc/hostname"), "sandbox\n");
    assert_eq!(read("etc/resolv.conf") + &read("etc/machine-id"), "");
    let profile = fs::metadata(layer.join("home/user/.profile")).unwrap();
    assert_eq!((profile.uid(), profile.gid()), (1000, 1000));
    let home = fs::metadata(layer.join("home/user")).unwrap();
    assert_eq!((home.uid(), home.mode() & 0o7777), (1000, 0o755));
    assert_eq!(fs::metadata(layer.join("root/.profile")).unwrap().uid(), 0);
}

#[test]
fn base_on_another_file_system_is_copied() {
    let temp = tempfile::tempdir().unwrap();
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        return;
    };
    host(&temp.path().join("host"));
    let store = TemplateStore::open(memory.path().join("templates"))
        .unwrap()
        .with_host_root(temp.path().join("host"));
    let report = store.rebuild_base(&mut no_progress()).unwrap();
    if fs::metadata(temp.path()).unwrap().dev() != fs::metadata(memory.path()).unwrap().dev() {
        assert_eq!(report.hard_linked, 0);
    }
    let sudo = memory.path().join("templates/base/layer/usr/bin/sudo");
    assert_eq!(mode(&sudo), 0o4755);
    assert_eq!(fs::read_to_string(sudo).unwrap(), "sudo");
}

#[test]
fn host_without_usr_is_an_error() {
    let mut fixture = Fixture::new();
    fixture.store = fixture.store.with_host_root(fixture.temp.path());
    assert!(matches!(
        fixture.store.rebuild_base(&mut no_progress()),
        Err(Error::Host(_))
    ));
    assert!(fixture.entries().is_empty());
}

#[test]
fn base_is_built_once_by_concurrent_callers() {
    let fixture = Fixture::new();
    let root = fixture.path("host");
    host(&root);
    let builds = AtomicUsize::new(0);
    let layers: Vec<_> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    // A second store, as in another process.
                    let store = TemplateStore::open(fixture.path("templates"))
                        .unwrap()
                        .with_host_root(&root);
                    let template = store
                        .ensure_base(&mut |progress| {
                            if progress.stage == Stage::Finished {
                                builds.fetch_add(1, Ordering::Relaxed);
                            }
                        })
                        .unwrap();
                    rustix::fs::fstat(&template.root).unwrap().st_ino
                })
            })
            .collect();
        callers
            .into_iter()
            .map(|caller| caller.join().unwrap())
            .collect()
    });
    assert_eq!(builds.into_inner(), 1);
    assert!(layers.iter().all(|layer| *layer == layers[0]));
    assert_eq!(fixture.entries(), ["base"]);
}

#[test]
fn base_rebuild_keeps_the_leased_layer() {
    let (fixture, _) = build();
    let old = fixture.store.get(BASE).unwrap();
    fs::write(fixture.path("host/usr/bin/new"), "new").unwrap();
    fixture.store.rebuild_base(&mut no_progress()).unwrap();
    assert!(fixture.layer("base").join("usr/bin/new").exists());
    assert!(layer_path::open(&old.root, b"usr/bin/bash", OFlags::RDONLY).is_ok());
    assert!(layer_path::open(&old.root, b"usr/bin/new", OFlags::RDONLY).is_err());
    assert_eq!(fixture.entries().len(), 2);
    drop(old);
    assert_eq!(fixture.store.sweep().unwrap(), 1);
    assert!(fixture.path("host/usr/bin/bash").exists());
}

use super::*;

#[test]
fn template_name_is_validated() {
    let fixture = Fixture::new();
    for name in [
        "",
        ".",
        "..",
        "Base",
        "a/b",
        "-a",
        ".a",
        "ä",
        "a b",
        &"a".repeat(64),
    ] {
        assert!(
            matches!(fixture.store.get(name), Err(Error::Name(_))),
            "{name:?}"
        );
        assert!(
            matches!(fixture.store.remove(name), Err(Error::Name(_))),
            "{name:?}"
        );
        assert!(
            matches!(
                fixture.add(name, &fixture.small("1"), &TemplateOptions::default()),
                Err(Error::Name(_))
            ),
            "{name:?}"
        );
    }
    for name in ["a", "0", "node-22.1_x", &"a".repeat(63)] {
        assert!(
            matches!(fixture.store.get(name), Err(Error::Unknown { .. })),
            "{name:?}"
        );
    }
    assert!(matches!(
        fixture.add("base", &fixture.small("1"), &TemplateOptions::default()),
        Err(Error::Reserved)
    ));
}

#[test]
fn unknown_template_error_lists_existing_ones() {
    let fixture = Fixture::new();
    fixture
        .add("one", &fixture.small("1"), &TemplateOptions::default())
        .unwrap();
    fixture
        .add("two", &fixture.small("1"), &TemplateOptions::default())
        .unwrap();
    let error = fixture.store.get("three").unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no template \"three\"; there are: one, two"
    );
}

#[test]
fn description_is_stored() {
    let fixture = Fixture::new();
    let options = TemplateOptions {
        user: TemplateUser {
            name: "dev".to_owned(),
            uid: 1234,
            gid: 1235,
            home: "/work".into(),
        },
        env: [("A".to_owned(), "b".to_owned())].into(),
        sudo: false,
        nested_user_namespaces: true,
        ..TemplateOptions::default()
    };
    let report = fixture.add("one", &fixture.small("1"), &options).unwrap();
    let template = fixture.store.get("one").unwrap();
    assert_eq!(template.layer, fixture.layer("one"));
    assert_eq!(template.meta.user, options.user);
    assert_eq!(template.meta.env, options.env);
    assert!(!template.meta.sudo && template.meta.nested_user_namespaces);
    assert_eq!(
        (template.meta.files, template.meta.size),
        (report.files, report.bytes)
    );
    assert!(template.meta.source.starts_with("directory /"));
    assert_eq!(
        fs::metadata(template.layer.join("work")).unwrap().uid(),
        1234
    );
    assert_eq!(mode(&template.layer), 0o755);
    assert_eq!(mode(fixture.path("templates")), 0o700);
}

#[test]
fn description_with_an_unknown_field_is_an_error() {
    let fixture = Fixture::new();
    fixture
        .add("one", &fixture.small("1"), &TemplateOptions::default())
        .unwrap();
    let path = fixture.path("templates/one/template.json");
    let text = fs::read_to_string(&path)
        .unwrap()
        .replacen('{', "{\"more\": 1,", 1);
    fs::write(path, text).unwrap();
    assert!(matches!(
        fixture.store.get("one"),
        Err(Error::Damaged { .. })
    ));
}

#[test]
fn existing_name_is_refused_unless_replaced() {
    let fixture = Fixture::new();
    fixture
        .add("one", &fixture.small("1"), &TemplateOptions::default())
        .unwrap();
    assert!(matches!(
        fixture.add("one", &fixture.small("2"), &TemplateOptions::default()),
        Err(Error::Exists { .. })
    ));
    fixture
        .add(
            "one",
            &fixture.small("2"),
            &TemplateOptions {
                replace: true,
                ..TemplateOptions::default()
            },
        )
        .unwrap();
    assert_eq!(
        fs::read_to_string(fixture.layer("one").join("etc/version")).unwrap(),
        "2"
    );
    assert_eq!(fixture.entries(), ["one"]);
}

#[test]
fn replaced_layer_is_kept_while_leased() {
    let fixture = Fixture::new();
    let replace = TemplateOptions {
        replace: true,
        ..TemplateOptions::default()
    };
    fixture.add("one", &fixture.small("1"), &replace).unwrap();
    let old = fixture.store.get("one").unwrap();
    fixture.add("one", &fixture.small("2"), &replace).unwrap();
    let new = fixture.store.get("one").unwrap();
    assert_eq!(read_below(&old), "1");
    assert_eq!(read_below(&new), "2");
    assert_eq!(fixture.store.list().unwrap(), ["one"]);
    assert_eq!(fixture.store.sweep().unwrap(), 0);
    assert_eq!(read_below(&old), "1");
    drop(old);
    assert_eq!(fixture.store.sweep().unwrap(), 1);
    assert_eq!(fixture.entries(), ["one"]);
    assert_eq!(read_below(&new), "2");
}

fn read_below(template: &Template) -> String {
    let file = layer_path::open(&template.root, b"etc/version", OFlags::RDONLY).unwrap();
    std::io::read_to_string(File::from(file)).unwrap()
}

#[test]
fn leased_template_is_not_removed() {
    let fixture = Fixture::new();
    fixture
        .add("one", &fixture.small("1"), &TemplateOptions::default())
        .unwrap();
    let template = fixture.store.get("one").unwrap();
    let error = fixture.store.remove("one").unwrap_err();
    assert!(
        matches!(&error, Error::InUse { name, .. } if name == "one"),
        "{error}"
    );
    drop(template);
    fixture.store.remove("one").unwrap();
    assert!(fixture.entries().is_empty());
    assert!(matches!(
        fixture.store.remove("one"),
        Err(Error::Unknown { .. })
    ));
}

#[test]
fn sweep_removes_a_dead_build_and_keeps_a_live_one() {
    let fixture = Fixture::new();
    let dead = fixture.path("templates/.new-dead/layer");
    fs::create_dir_all(&dead).unwrap();
    fs::write(dead.join("file"), "x").unwrap();
    let live = Build::begin(&fixture.store).unwrap();
    assert_eq!(fixture.store.sweep().unwrap(), 1);
    assert_eq!(fixture.entries().len(), 1);
    live.publish(
        "one",
        &meta::new_info("test".to_owned(), Report::default()),
        IfExists::Fail,
    )
    .unwrap();
    assert_eq!(fixture.store.sweep().unwrap(), 0);
    assert_eq!(fixture.entries(), ["one"]);
}

#[test]
fn failed_build_leaves_nothing() {
    let fixture = Fixture::new();
    drop(Build::begin(&fixture.store).unwrap());
    let missing = Source::Directory(fixture.path("missing"));
    assert!(matches!(
        fixture.add("one", &missing, &TemplateOptions::default()),
        Err(Error::Io { .. })
    ));
    let missing = Source::Archive(fixture.path("missing"));
    assert!(matches!(
        fixture.add("one", &missing, &TemplateOptions::default()),
        Err(Error::Io { .. })
    ));
    let small = TemplateOptions {
        max_bytes: 1,
        ..TemplateOptions::default()
    };
    assert!(matches!(
        fixture.add("one", &fixture.small("large"), &small),
        Err(Error::TooLarge(1))
    ));
    assert!(fixture.entries().is_empty());
}

#[test]
fn directory_is_copied_with_links_modes_and_owners() {
    let fixture = Fixture::new();
    let from = fixture.path("from");
    write(&from, "bin/tool", "tool", 0o4755);
    fs::hard_link(from.join("bin/tool"), from.join("bin/same")).unwrap();
    symlink("/etc/shadow", from.join("bin/link")).unwrap();
    write(&from, "home/file", "x", 0o600);
    chown(from.join("home/file"), Some(70_000), Some(1_000_000)).unwrap();
    chown(from.join("home"), Some(500), Some(501)).unwrap();
    fs::set_permissions(from.join("home"), fs::Permissions::from_mode(0o2750)).unwrap();
    drop(std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap());
    rustix::fs::mknodat(
        rustix::fs::CWD,
        from.join("null"),
        rustix::fs::FileType::CharacterDevice,
        Mode::RWXU,
        259,
    )
    .unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, from.join("fifo"), Mode::RWXU).unwrap();
    let capability = [
        1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    write(&from, "bin/ping", "ping", 0o755);
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(
        from.join("bin/ping"),
        atoll_jail::archive::CAPABILITY,
        &capability,
        flags,
    )
    .unwrap();
    rustix::fs::setxattr(from.join("bin/ping"), "trusted.overlay.opaque", b"y", flags).unwrap();

    let report = fixture
        .add(
            "one",
            &Source::Directory(from.clone()),
            &TemplateOptions::default(),
        )
        .unwrap();
    assert_eq!((report.skipped, report.hard_linked), (3, 1));
    assert_eq!(report.bytes, 4 + 1 + 4);
    let layer = fixture.layer("one");
    let tool = fs::metadata(layer.join("bin/tool")).unwrap();
    assert_eq!(tool.mode() & 0o7777, 0o4755);
    assert_eq!(
        tool.ino(),
        fs::metadata(layer.join("bin/same")).unwrap().ino()
    );
    assert_ne!(
        tool.ino(),
        fs::metadata(from.join("bin/tool")).unwrap().ino()
    );
    assert_eq!(
        tool.mtime_nsec(),
        fs::metadata(from.join("bin/tool")).unwrap().mtime_nsec()
    );
    assert_eq!(
        fs::read_link(layer.join("bin/link")).unwrap(),
        Path::new("/etc/shadow")
    );
    let file = fs::metadata(layer.join("home/file")).unwrap();
    assert_eq!((file.uid(), file.gid()), (NOBODY, NOBODY));
    let home = fs::metadata(layer.join("home")).unwrap();
    assert_eq!(
        (home.uid(), home.gid(), home.mode() & 0o7777),
        (500, 501, 0o2750)
    );
    let mut list = [0; 1024];
    let length = rustix::fs::listxattr(layer.join("bin/ping"), &mut list[..]).unwrap();
    assert_eq!(&list[..length], b"security.capability\0");
    for name in ["dev", "proc", "sys", "run", "tmp", "home/user"] {
        assert!(layer.join(name).is_dir(), "{name}");
    }
}

#[test]
fn store_inside_the_source_is_not_copied_into_itself() {
    let fixture = Fixture::new();
    let _source = fixture.small("1");
    let report = fixture
        .add(
            "one",
            &Source::Directory(fixture.temp.path().into()),
            &TemplateOptions::default(),
        )
        .unwrap();
    assert_eq!(report.skipped, 1);
    assert!(fixture.layer("one").join("small-1/etc/version").exists());
    assert!(!fixture.layer("one").join("templates").exists());
}

#[test]
fn too_deep_directory_is_refused() {
    let fixture = Fixture::new();
    let deep = fixture.path("deep").join("d/".repeat(400));
    fs::create_dir_all(deep).unwrap();
    let error = fixture
        .add(
            "one",
            &Source::Directory(fixture.path("deep")),
            &TemplateOptions::default(),
        )
        .unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(fixture.entries().is_empty());
}

#[test]
fn imported_tree_gets_its_user_once() {
    let fixture = Fixture::new();
    let from = fixture.path("from");
    write(&from, "etc/passwd", "root:x:0:0:root:/root:/bin/sh", 0o644);
    write(&from, "etc/group", "root:x:0:\nwheel:x:1000:\n", 0o644);
    symlink("../../../../outside", from.join("etc/shadow")).unwrap();
    write(&fixture.path(""), "outside", "", 0o644);
    fixture
        .add("one", &Source::Directory(from), &TemplateOptions::default())
        .unwrap();
    let layer = fixture.layer("one");
    let passwd = fs::read_to_string(layer.join("etc/passwd")).unwrap();
    assert_eq!(
        passwd,
        "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n"
    );
    assert_eq!(
        fs::read_to_string(layer.join("etc/group")).unwrap(),
        "root:x:0:\nwheel:x:1000:\n"
    );
    assert_eq!(fs::read_to_string(fixture.path("outside")).unwrap(), "");
    fixture
        .add(
            "two",
            &Source::Directory(layer.clone()),
            &TemplateOptions::default(),
        )
        .unwrap();
    assert_eq!(
        fs::read_to_string(fixture.layer("two").join("etc/passwd")).unwrap(),
        passwd
    );
}

#[test]
fn user_that_breaks_account_files_is_refused() {
    let fixture = Fixture::new();
    let good = TemplateUser::default();
    let bad = [
        TemplateUser {
            name: "a:b".to_owned(),
            ..good.clone()
        },
        TemplateUser {
            name: "a\nroot::0:0:::".to_owned(),
            ..good.clone()
        },
        TemplateUser {
            name: String::new(),
            ..good.clone()
        },
        TemplateUser {
            uid: ID_COUNT,
            ..good.clone()
        },
        TemplateUser {
            gid: u32::MAX,
            ..good.clone()
        },
        TemplateUser {
            home: "home".into(),
            ..good.clone()
        },
        TemplateUser {
            home: "/home/../x".into(),
            ..good.clone()
        },
        TemplateUser {
            home: "/home\nroot".into(),
            ..good
        },
    ];
    for user in bad {
        let options = TemplateOptions {
            user,
            ..TemplateOptions::default()
        };
        let error = fixture
            .add("one", &fixture.small("1"), &options)
            .unwrap_err();
        assert!(matches!(error, Error::User(_)), "{error}");
    }
    assert!(fixture.entries().is_empty());
}

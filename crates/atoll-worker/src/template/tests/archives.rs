use std::io::Write;

use tar::{Builder, EntryType, Header};

use super::*;

/// One entry of a hostile archive.
struct Raw {
    kind: EntryType,
    name: &'static str,
    link: &'static str,
    data: &'static [u8],
}

fn file(name: &'static str) -> Raw {
    Raw {
        kind: EntryType::Regular,
        name,
        link: "",
        data: b"evil",
    }
}

fn link(kind: EntryType, name: &'static str, link: &'static str) -> Raw {
    Raw {
        kind,
        name,
        link,
        data: b"",
    }
}

fn header(kind: EntryType, name: &[u8], link: &[u8], size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.as_mut_bytes()[..name.len()].copy_from_slice(name);
    header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link);
    header.set_mode(if kind == EntryType::Directory {
        0o755
    } else {
        0o4755
    });
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1_000_000_000);
    header.set_size(size);
    header.set_cksum();
    header
}

fn pack(entries: &[Raw]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for Raw {
        kind,
        name,
        link,
        data,
    } in entries
    {
        builder
            .append(
                &header(*kind, name.as_bytes(), link.as_bytes(), data.len() as u64),
                *data,
            )
            .unwrap();
    }
    builder.into_inner().unwrap()
}

impl Fixture {
    fn unpack(&self, archive: &[u8], options: &TemplateOptions) -> Result<Report, Error> {
        let path = self.path("archive");
        fs::write(&path, archive).unwrap();
        self.add("one", &Source::Archive(path), options)
    }
}

#[test]
fn entry_outside_the_layer_is_refused_by_name() {
    use EntryType::{Link, Symlink};
    let cases: &[(&str, &[Raw], &str)] = &[
        ("parent", &[file("../evil")], "`..`"),
        ("parent in the middle", &[file("a/b/../../../evil")], "`..`"),
        (
            "parent at the end",
            &[Raw {
                kind: EntryType::Directory,
                ..file("a/..")
            }],
            "`..`",
        ),
        ("absolute", &[file("/tmp/evil")], "absolute"),
        (
            "through a link",
            &[link(Symlink, "out", "../../../.."), file("out/evil")],
            "symlink",
        ),
        (
            "through an absolute link",
            &[link(Symlink, "out", "/"), file("out/evil")],
            "symlink",
        ),
        (
            "through a link inside",
            &[link(Symlink, "out", "."), file("out/evil")],
            "symlink",
        ),
        (
            "through two links",
            &[
                link(Symlink, "a", ".."),
                link(Symlink, "b", "a/.."),
                file("b/evil"),
            ],
            "symlink",
        ),
        (
            "directory through a link",
            &[
                link(Symlink, "out", "/"),
                Raw {
                    kind: EntryType::Directory,
                    ..file("out/evil")
                },
            ],
            "symlink",
        ),
        (
            "hard link outside",
            &[link(Link, "evil", "../../../outside")],
            "`..`",
        ),
        (
            "absolute hard link",
            &[link(Link, "evil", "/etc/shadow")],
            "absolute",
        ),
        (
            "hard link through a link",
            &[
                link(Symlink, "out", "/etc"),
                link(Link, "evil", "out/shadow"),
            ],
            "symlink",
        ),
        (
            "hard link to nothing",
            &[link(Link, "evil", "nothing")],
            "does not come before it",
        ),
        (
            "hard link to a directory",
            &[file("a/b"), link(Link, "evil", "a")],
            "directory",
        ),
        (
            "file in the way",
            &[file("a"), file("a/b")],
            "parent directory is a file",
        ),
        (
            "directory in the way",
            &[file("a/b"), file("a")],
            "directory",
        ),
        (
            "link for a directory",
            &[file("a/b"), link(Symlink, "a", "/")],
            "directory",
        ),
    ];
    for (what, entries, reason) in cases {
        let fixture = Fixture::new();
        fs::write(fixture.path("outside"), "outside").unwrap();
        let error = fixture
            .unpack(&pack(entries), &TemplateOptions::default())
            .unwrap_err();
        let last = entries.last().unwrap().name;
        assert!(
            matches!(&error, Error::Refused { entry, .. } if entry == last),
            "{what}: {error}"
        );
        assert!(error.to_string().contains(reason), "{what}: {error}");
        assert!(fixture.entries().is_empty(), "{what}");
        let mut left: Vec<_> = fs::read_dir(fixture.temp.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["archive", "outside", "templates"], "{what}");
        assert_eq!(
            fs::read_to_string(fixture.path("outside")).unwrap(),
            "outside",
            "{what}"
        );
    }
}

#[test]
fn file_replaces_a_symlink_and_does_not_follow_it() {
    let fixture = Fixture::new();
    fs::write(fixture.path("outside"), "outside").unwrap();
    let archive = pack(&[
        link(EntryType::Symlink, "a", "../../../outside"),
        file("a"),
        link(EntryType::Symlink, "d", "/"),
        Raw {
            kind: EntryType::Directory,
            ..file("d")
        },
        file("d/inside"),
        file("twice"),
        file("twice"),
        file("./e//f"),
        Raw {
            kind: EntryType::Directory,
            data: b"",
            ..file("./")
        },
    ]);
    fixture
        .unpack(&archive, &TemplateOptions::default())
        .unwrap();
    let layer = fixture.layer("one");
    assert_eq!(fs::read_to_string(layer.join("a")).unwrap(), "evil");
    assert!(layer.join("a").symlink_metadata().unwrap().is_file());
    assert!(layer.join("d").symlink_metadata().unwrap().is_dir());
    assert!(layer.join("d/inside").exists() && layer.join("e/f").exists());
    assert_eq!(
        fs::read_to_string(fixture.path("outside")).unwrap(),
        "outside"
    );
}

#[test]
fn devices_and_fifos_are_skipped_and_setuid_is_kept() {
    let fixture = Fixture::new();
    let archive = pack(&[
        link(EntryType::Char, "dev/null", ""),
        link(EntryType::Block, "dev/vda", ""),
        link(EntryType::Fifo, "fifo", ""),
        file("bin/sudo"),
        link(EntryType::Link, "bin/same", "bin/sudo"),
        link(EntryType::Symlink, "bin/link", "/etc/shadow"),
        file(".wh.name"),
    ]);
    let report = fixture
        .unpack(&archive, &TemplateOptions::default())
        .unwrap();
    assert_eq!(
        report,
        Report {
            files: 4,
            bytes: 8,
            skipped: 3,
            hard_linked: 1
        }
    );
    let layer = fixture.layer("one");
    assert!(!layer.join("dev/null").exists() && !layer.join("fifo").exists());
    assert_eq!(mode(layer.join("bin/sudo")), 0o4755);
    assert_eq!(
        fs::metadata(layer.join("bin/same")).unwrap().ino(),
        fs::metadata(layer.join("bin/sudo")).unwrap().ino()
    );
    assert_eq!(
        fs::metadata(layer.join("bin/sudo")).unwrap().mtime(),
        1_000_000_000
    );
    assert_eq!(
        fs::read_link(layer.join("bin/link")).unwrap(),
        Path::new("/etc/shadow")
    );
    assert!(layer.join(".wh.name").is_file());
}

#[test]
fn decompression_bomb_fails_and_leaves_nothing() {
    let limit = TemplateOptions {
        max_bytes: 1 << 20,
        ..TemplateOptions::default()
    };
    let too_large = |archive: &[u8]| {
        let fixture = Fixture::new();
        let error = fixture.unpack(archive, &limit).unwrap_err();
        assert!(matches!(error, Error::TooLarge(_)), "{error}");
        assert!(fixture.entries().is_empty());
    };
    // Zeros that compress a thousandfold, in one file and in many.
    let zeros = vec![0; 2 << 20];
    let mut builder = Builder::new(flate2::write::GzEncoder::new(
        Vec::new(),
        flate2::Compression::fast(),
    ));
    builder
        .append(
            &header(EntryType::Regular, b"a", b"", zeros.len() as u64),
            &zeros[..],
        )
        .unwrap();
    too_large(&builder.into_inner().unwrap().finish().unwrap());
    let mut builder = Builder::new(Vec::new());
    for name in [b"a", b"b", b"c"] {
        builder
            .append(
                &header(EntryType::Regular, name, b"", 400_000),
                &zeros[..400_000],
            )
            .unwrap();
    }
    too_large(&builder.into_inner().unwrap());
    // Large only according to its header: refused before anything is written.
    too_large(header(EntryType::Regular, b"a", b"", 1 << 40).as_bytes());
    // A sparse file of a terabyte in two blocks.
    let mut sparse = header(EntryType::GNUSparse, b"a", b"", 0);
    sparse
        .as_gnu_mut()
        .unwrap()
        .realsize
        .copy_from_slice(b"20000000000\0");
    sparse.set_cksum();
    too_large(sparse.as_bytes());
}

#[test]
fn entry_name_length_is_limited() {
    for kind in [
        EntryType::GNULongName,
        EntryType::GNULongLink,
        EntryType::XHeader,
        EntryType::XGlobalHeader,
    ] {
        let fixture = Fixture::new();
        let archive = header(kind, b"a", b"", 1 << 40);
        let error = fixture
            .unpack(archive.as_bytes(), &TemplateOptions::default())
            .unwrap_err();
        assert!(error.to_string().contains("longer than"), "{error}");
    }
}

#[test]
fn corrupt_and_unsupported_archives_are_refused() {
    let good = pack(&[file("a"), file("b")]);
    let mut flipped = good.clone();
    flipped[3] ^= 1;
    let mut impossible = header(EntryType::Regular, b"a", b"", 0);
    impossible.as_gnu_mut().unwrap().size = [0xff; 12];
    impossible.set_cksum();
    let cases: &[(&[u8], &str)] = &[
        (&good[..700], "too early"),
        (&good[..300], "too early"),
        (&flipped, "check sum"),
        (b"\xfd7zXZ\0", "xz -d"),
        (b"PK\x03\x04", "zip"),
        (b"\x1f\x8bnonsense", "cannot be read"),
        (impossible.as_bytes(), "impossible"),
        (b"", "it is empty"),
        (&pack(&[]), "it is empty"),
    ];
    for (archive, reason) in cases {
        let fixture = Fixture::new();
        let error = fixture
            .unpack(archive, &TemplateOptions::default())
            .unwrap_err();
        assert!(matches!(error, Error::Archive { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        assert!(fixture.entries().is_empty());
    }
}

#[test]
fn compressed_archive_with_long_names_is_read() {
    let long = format!("{}/file", ["a-rather-long-directory-name"; 12].join("/"));
    let mut builder = Builder::new(Vec::new());
    let mut entry = Header::new_gnu();
    entry.set_size(4);
    entry.set_mode(0o644);
    entry.set_uid(70_000);
    entry.set_gid(5);
    builder
        .append_data(&mut entry, &long, &b"long"[..])
        .unwrap();
    builder
        .append_link(&mut header(EntryType::Link, b"", b"", 0), "short", &long)
        .unwrap();
    let plain = builder.into_inner().unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&plain).unwrap();
    for archive in [
        plain.clone(),
        gzip.finish().unwrap(),
        zstd::encode_all(&plain[..], 3).unwrap(),
    ] {
        let fixture = Fixture::new();
        let report = fixture
            .unpack(&archive, &TemplateOptions::default())
            .unwrap();
        assert_eq!(
            report,
            Report {
                files: 2,
                bytes: 4,
                skipped: 0,
                hard_linked: 1
            }
        );
        let file = fixture.layer("one").join("short");
        assert_eq!(fs::read_to_string(&file).unwrap(), "long");
        assert_eq!(fs::metadata(&file).unwrap().uid(), NOBODY);
        assert_eq!(fs::metadata(&file).unwrap().gid(), 5);
    }
}

#[test]
fn pax_headers_apply_and_other_attributes_are_dropped() {
    let capability = [
        1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    let name = "n".repeat(120);
    let mut builder = Builder::new(Vec::new());
    let records: [(&str, &[u8]); 7] = [
        ("path", name.as_bytes()),
        ("mtime", b"1234567890.5"),
        ("uid", b"77"),
        ("SCHILY.xattr.security.capability", &capability),
        ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
        ("SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
        ("SCHILY.xattr.user.note", b"line\nline"),
    ];
    builder.append_pax_extensions(records).unwrap();
    builder
        .append(&header(EntryType::Regular, b"short", b"", 4), &b"data"[..])
        .unwrap();
    let fixture = Fixture::new();
    fixture
        .unpack(&builder.into_inner().unwrap(), &TemplateOptions::default())
        .unwrap();
    let path = fixture.layer("one").join(name);
    let meta = fs::metadata(&path).unwrap();
    assert_eq!(
        (meta.mtime(), meta.mtime_nsec(), meta.uid()),
        (1_234_567_890, 500_000_000, 77)
    );
    let mut list = [0; 1024];
    let length = rustix::fs::listxattr(&path, &mut list[..]).unwrap();
    assert_eq!(&list[..length], b"security.capability\0");
}

#[test]
fn directory_keeps_its_time_and_mode() {
    let fixture = Fixture::new();
    let archive = pack(&[
        Raw {
            kind: EntryType::Directory,
            data: b"",
            ..file("d")
        },
        file("d/a"),
        file("d/b"),
    ]);
    fixture
        .unpack(&archive, &TemplateOptions::default())
        .unwrap();
    let meta = fs::metadata(fixture.layer("one").join("d")).unwrap();
    assert_eq!((meta.mtime(), meta.mode() & 0o7777), (1_000_000_000, 0o755));
}

/// GNU tar's own archives, if it is installed: both formats, and sparse.
#[test]
fn gnu_tar_archives_are_read() {
    let fixture = Fixture::new();
    let from = fixture.path("from");
    write(&from, "deep/er/file", "contents", 0o640);
    symlink("file", from.join("deep/er/link")).unwrap();
    let sparse = fs::File::create(from.join("sparse")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"end", 3 << 20).unwrap();
    for format in ["gnu", "pax", "ustar"] {
        let archive = fixture.path("archive");
        let mut command = std::process::Command::new("tar");
        command
            .arg(format!("--format={format}"))
            .arg("-cf")
            .arg(&archive)
            .arg("-C")
            .arg(&from)
            .arg(".");
        if format == "gnu" {
            command.arg("--sparse");
        }
        assert!(command.status().unwrap().success());
        fixture
            .add(
                format,
                &Source::Archive(archive),
                &TemplateOptions::default(),
            )
            .unwrap();
        let layer = fixture.layer(format);
        assert_eq!(
            fs::read_to_string(layer.join("deep/er/link")).unwrap(),
            "contents"
        );
        assert_eq!(mode(layer.join("deep/er/file")), 0o640);
        assert_eq!(
            fs::read(layer.join("sparse")).unwrap(),
            fs::read(from.join("sparse")).unwrap()
        );
    }
    assert!(
        fs::metadata(fixture.layer("gnu").join("sparse"))
            .unwrap()
            .blocks()
            < 100
    );
}

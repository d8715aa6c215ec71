"""Files, with the synchronous client."""

import gzip
import inspect
import io
import json
import urllib.error
import urllib.request

from e2b import (
    AuthenticationException,
    FileNotFoundException,
    FileType,
    FilesystemEventType,
    InvalidArgumentException,
    NotEnoughSpaceException,
    Sandbox,
    SandboxException,
)

from expect import FILL, raises, same, until


def contents(files):
    info = files.write("hello.txt", "hello")
    same((info.name, info.path, info.type), ("hello.txt", "/home/user/hello.txt", FileType.FILE))
    assert not info.metadata
    same(files.read("hello.txt"), "hello")
    same(files.read("~/hello.txt"), "hello")
    same(files.read("/home/user/../user//hello.txt"), "hello")
    same(bytes(files.read("hello.txt", format="bytes")), b"hello")
    same(b"".join(files.read("hello.txt", format="stream")), b"hello")
    # A write truncates a longer file.
    files.write("hello.txt", b"\x00\xff")
    same(bytes(files.read("hello.txt", format="bytes")), b"\x00\xff")
    files.write("from-io", io.BytesIO(b"io" * 100_000))
    same(bytes(files.read("from-io", format="bytes")), b"io" * 100_000)
    files.write("from-text", io.StringIO("text"))
    same(files.read("from-text"), "text")
    files.write("empty", "")
    same(files.read("empty"), "")
    # Missing parent directories are created.
    info = files.write("one/two/three.txt", "3")
    same(info.path, "/home/user/one/two/three.txt")
    above = files.get_info("one")
    same((above.owner, above.group, above.mode), ("user", "user", 0o755))
    # Unusual file names.
    for name in ["with space", "ünïcödé 🦀", 'quo"te', "per%20cent", "plus+and&"]:
        same(files.write(name, name).path, f"/home/user/{name}")
        same(files.read(name), name)
    # Files of /proc have a size of 0 and contents.
    same(len(files.read("/proc/sys/kernel/random/boot_id").strip()), 36)
    large = bytes(range(256)) * 40_000
    files.write("large", large)
    assert bytes(files.read("large", format="bytes")) == large


def several(files):
    written = files.write_files(
        [
            {"path": "a/1", "data": "one"},
            {"path": "/tmp/2", "data": b"two"},
            {"path": "ü.txt", "data": "three"},
        ]
    )
    same([info.path for info in written], ["/home/user/a/1", "/tmp/2", "/home/user/ü.txt"])
    same([files.read(info.path) for info in written], ["one", "two", "three"])
    streamed = [{"path": "s1", "data": io.BytesIO(b"1")}, {"path": "s2", "data": "2"}]
    same([info.name for info in files.write_files(streamed)], ["s1", "s2"])
    same(files.write_files([]), [])
    with raises(InvalidArgumentException, "same path '/tmp/twice'", "only the first"):
        files.write_files([{"path": "/tmp/twice", "data": "1"}, {"path": "/tmp//twice", "data": "2"}])
    same(files.read("/tmp/twice"), "1")


def compressed(files):
    data = b"gzip " * 100_000
    files.write("packed", data, gzip=True)
    assert bytes(files.read("packed", format="bytes", gzip=True)) == data
    files.write("octets", data, use_octet_stream=True)
    assert bytes(files.read("octets", format="bytes")) == data


def metadata(files):
    info = files.write("labelled", "x", metadata={"Author": "ann", "purpose": "a test"})
    expected = {"author": "ann", "purpose": "a test"}
    same(info.metadata, expected)
    same(files.get_info("labelled").metadata, expected)
    same([it.metadata for it in files.list(".") if it.name == "labelled"], [expected])
    same(files.rename("labelled", "moved").metadata, expected)
    # An upload replaces all metadata.
    files.write("moved", "y", metadata={"author": "bob"})
    same(files.get_info("moved").metadata, {"author": "bob"})
    files.write("moved", b"z", use_octet_stream=True, metadata={"k": "v"})
    same(files.get_info("moved").metadata, {"k": "v"})
    files.write("moved", "w")
    assert not files.get_info("moved").metadata


def entry_info(sandbox):
    files = sandbox.files
    files.write("d/file.txt", "12345")
    sandbox.commands.run("chmod 640 d/file.txt && ln -s d/file.txt link && ln -s nowhere broken && ln -s d to-d")
    info = files.get_info("d/file.txt")
    same((info.name, info.type, info.path), ("file.txt", FileType.FILE, "/home/user/d/file.txt"))
    same((info.size, info.mode, info.permissions), (5, 0o640, "-rw-r-----"))
    same((info.owner, info.group, info.symlink_target), ("user", "user", None))
    output = sandbox.commands.run("stat -c %Y d/file.txt").stdout
    same(int(info.modified_time.timestamp()), int(output))
    directory = files.get_info("d")
    same((directory.type, directory.permissions), (FileType.DIR, "drwxr-xr-x"))
    assert directory.size > 0
    same(files.get_info("/tmp").permissions, "dtrwxrwxrwx")
    same(files.get_info("/etc/passwd").owner, "root")
    same(files.get_info("/").name, "/")
    link = files.get_info("link")
    same((link.type, link.path), (FileType.FILE, "/home/user/link"))
    same((link.symlink_target, link.mode), ("/home/user/d/file.txt", 0o640))
    same(link.permissions, "Lrwxrwxrwx")
    same(files.get_info("to-d").type, FileType.DIR)
    assert files.exists("link") and files.exists("broken") and not files.exists("nowhere")
    with raises(FileNotFoundException):
        files.get_info("nowhere")
    # Ids without a name are shown as numbers.
    sandbox.commands.run("touch /home/user/numbered && chown 4711:4712 /home/user/numbered", user="root")
    numbered = files.get_info("numbered")
    same((numbered.owner, numbered.group), ("4711", "4712"))


def listed(sandbox):
    files = sandbox.files
    for path in ["l/b/2", "l/b/1", "l/a/x/deep", "l/c", "l/a.txt"]:
        files.write(path, path)
    sandbox.commands.run("ln -s a l/z-link")
    names = lambda depth: [it.path.removeprefix("/home/user/l/") for it in files.list("l", depth=depth)]
    same(names(1), ["a", "a.txt", "b", "c", "z-link"])
    same(names(2), ["a", "a/x", "a.txt", "b", "b/1", "b/2", "c", "z-link"])
    same(names(3), ["a", "a/x", "a/x/deep", "a.txt", "b", "b/1", "b/2", "c", "z-link"])
    sandbox.commands.run("ln -s l through && ln -s loop loop")
    same([it.path for it in files.list("through")][0], "/home/user/through/a")
    same(files.list("l")[1].size, 7)
    files.make_dir("nothing")
    same(files.list("nothing"), [])
    with raises(InvalidArgumentException, "not a directory"):
        files.list("l/c")
    with raises(FileNotFoundException):
        files.list("l/missing")
    with raises(SandboxException, "too many symbolic links"):
        files.list("loop")
    with raises(InvalidArgumentException):
        files.list("l", depth=0)


def changed(files):
    same(files.make_dir("m/n/o"), True)
    same(files.make_dir("m/n/o"), False)
    same(files.make_dir("/home/user/m/"), False)
    same(files.get_info("m/n").owner, "user")
    files.write("m/file", "m")
    with raises(InvalidArgumentException, "not a directory"):
        files.make_dir("m/file")
    info = files.rename("m/file", "new/place/file")
    same((info.name, info.path), ("file", "/home/user/new/place/file"))
    assert not files.exists("m/file")
    files.write("other", "replaced")
    files.rename("new/place/file", "other")
    same(files.read("other"), "m")
    with raises(FileNotFoundException):
        files.rename("missing", "elsewhere")
    files.remove("other")
    assert not files.exists("other")
    files.remove("m")
    assert not files.exists("m")
    files.remove("m")


def users(sandbox):
    files = sandbox.files
    files.write("mine", "x")
    same(files.get_info("mine").owner, "user")
    files.write("roots", "x", user="root")
    same(files.get_info("/root/roots", user="root").owner, "root")
    same(files.read("roots", user="root"), "x")
    # The daemon has all permissions, for any user; files that it writes belong to the user.
    files.write("/etc/atoll-test", "x")
    same(files.get_info("/etc/atoll-test").owner, "user")
    sandbox.commands.run("echo secret >/root/hidden && chmod 600 /root/hidden", user="root")
    same(files.read("/root/hidden"), "secret\n")
    files.write("/root/hidden", "taken")
    same(files.get_info("/root/hidden").owner, "user")
    for call in [
        lambda: files.read("mine", user="no-such-user"),
        lambda: files.write("mine", "x", user="no-such-user"),
        lambda: files.list(".", user="no-such-user"),
        lambda: files.make_dir("d", user="no-such-user"),
    ]:
        with raises(AuthenticationException, "invalid username: 'no-such-user'"):
            call()


def refused(files):
    with raises(FileNotFoundException, "path '/home/user/missing' does not exist"):
        files.read("missing")
    with raises(FileNotFoundException):
        files.read("missing", format="stream")
    with raises(InvalidArgumentException, "path '/home/user' is a directory"):
        files.read("/home/user")
    files.make_dir("in-the-way")
    with raises(InvalidArgumentException, "path '/home/user/in-the-way' is a directory"):
        files.write("in-the-way", "x")
    with raises(InvalidArgumentException):
        files.write("in-the-way", "x", use_octet_stream=True)
    with raises(InvalidArgumentException):
        files.read("/dev/null")


def full(sandbox):
    sandbox.commands.run(FILL, user="root")
    for octets in [True, False]:
        with raises(NotEnoughSpaceException):
            sandbox.files.write("/run/large", b"x" * (8 << 20), use_octet_stream=octets)
        assert not sandbox.files.exists("/run/large")
    sandbox.files.write("/run/small", "fits")
    sandbox.files.remove("/run/filler")


def watched(sandbox):
    files = sandbox.files
    files.make_dir("w")
    events = lambda handle: [(it.type, it.name) for it in handle.get_new_events()]
    handle = files.watch_dir("w")
    same(events(handle), [])
    files.write("w/new", "x")
    kind = FilesystemEventType
    same(events(handle), [(kind.CREATE, "new"), (kind.CHMOD, "new"), (kind.WRITE, "new")])
    files.rename("w/new", "w/old")
    same(events(handle), [(kind.RENAME, "new"), (kind.CREATE, "old")])
    files.rename("w/old", "w2/elsewhere")
    same(events(handle), [(kind.RENAME, "old")])
    files.rename("w2/elsewhere", "w/old")
    same(events(handle), [(kind.CREATE, "old")])
    files.remove("w/old")
    same(events(handle), [(kind.REMOVE, "old")])
    files.make_dir("w/deep")
    same(events(handle), [(kind.CREATE, "deep"), (kind.CHMOD, "deep")])
    files.write("w/deep/unseen", "x")
    same(events(handle), [])
    handle.stop()
    with raises(SandboxException, "already stopped"):
        handle.get_new_events()
    handle = files.watch_dir("w", recursive=True)
    files.write("w/deep/seen", "x")
    assert (kind.WRITE, "deep/seen") in events(handle)
    files.write("w/later/one/file", "x")
    until("a file in a new directory", lambda: (kind.WRITE, "later/one/file") in events(handle))
    handle.stop()
    handle = files.watch_dir("w", include_entry=True)
    files.write("w/entry", "12345")
    files.remove("w/deep")
    for event in handle.get_new_events():
        if event.type == kind.REMOVE:
            assert event.entry is None
        elif event.name == "entry":
            same((event.entry.path, event.entry.size), ("/home/user/w/entry", 5))
    handle.stop()
    # A sandbox has no network mounts; the option is accepted and changes nothing.
    if "allow_network_mounts" in inspect.signature(files.watch_dir).parameters:
        handle = files.watch_dir("w", allow_network_mounts=True)
        files.write("w/allowed", "x")
        assert (kind.WRITE, "allowed") in events(handle)
        handle.stop()
    with raises(FileNotFoundException):
        files.watch_dir("missing")
    with raises(InvalidArgumentException):
        files.watch_dir("w/entry")
    with raises(AuthenticationException):
        files.watch_dir("w", user="no-such-user")


def fetch(url, data=None, headers=None):
    request = urllib.request.Request(url, data=data, headers=headers or {})
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def form(name, contents):
    body = f'--line\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n{contents}\r\n--line--\r\n'
    return body.encode(), {"Content-Type": "multipart/form-data; boundary=line"}


def signed(sandbox):
    files = sandbox.files
    files.write("signed file", "here")
    for url in [
        sandbox.download_url("signed file"),
        sandbox.download_url("signed file", user="user"),
        sandbox.download_url("signed file", use_signature_expiration=60),
        sandbox.download_url("/home/user/signed file", user="root", use_signature_expiration=60),
    ]:
        assert "signature=v1_" in url
        same(fetch(url), (200, b"here"))
    expired = sandbox.download_url("signed file", use_signature_expiration=-120)
    status, body = fetch(expired)
    same((status, json.loads(body)), (401, {"code": 401, "message": "signature is already expired"}))
    status, body = fetch(sandbox.download_url("signed file").replace("signed", "other"))
    same((status, json.loads(body)), (401, {"code": 401, "message": "invalid signature"}))
    # A signature for reading is invalid for writing.
    status, body = fetch(sandbox.download_url("signed file"), *form("signed file", "changed"))
    same((status, json.loads(body)["message"]), (401, "invalid signature"))
    status, body = fetch(sandbox.upload_url("sent", use_signature_expiration=60), *form("other", "sent"))
    written = [{"name": "sent", "path": "/home/user/sent", "type": "file"}]
    same((status, json.loads(body)), (200, written))
    same(files.read("sent"), "sent")
    octets = {"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"}
    status, _ = fetch(sandbox.upload_url("sent", user="root"), gzip.compress(b"by root"), octets)
    same((status, files.read("/root/sent")), (200, "by root"))
    status, body = fetch(sandbox.upload_url("sent", user="root"), b"no gzip", octets)
    same((status, json.loads(body)["code"]), (400, 400))
    same(fetch(sandbox.download_url("sent"), headers={"Range": "bytes=1-2"}), (206, b"en"))
    same(fetch(sandbox.download_url("sent"), headers={"Range": "bytes=9-"})[0], 416)
    elsewhere = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983"}
    base = sandbox.download_url("sent").split("/files")[0]
    for path, message in [
        ("/files?path=sent", "missing signature query parameter"),
        ("/files?path=sent&signature=v1_x", "invalid signature"),
        ("/envs", "unauthorized access"),
    ]:
        status, body = fetch(base + path, headers=elsewhere)
        same(status, 401)
        assert message in json.loads(body)["message"], body
    status, body = fetch(base + "/files?path=sent", headers={**elsewhere, "X-Access-Token": "wrong"})
    same((status, json.loads(body)["message"]), (401, "access token present in header but does not match"))


def inside(sandbox):
    """Routes of the daemon in the sandbox, and routes that are not exposed."""
    headers = {
        "E2b-Sandbox-Id": sandbox.sandbox_id,
        "E2b-Sandbox-Port": "49983",
        "X-Access-Token": sandbox.connection_config.sandbox_headers["X-Access-Token"],
    }
    base = sandbox.download_url("x").split("/files")[0]
    status, body = fetch(base + "/envs", headers=headers)
    same((status, json.loads(body)["GREETING"]), (200, "hello"))
    status, body = fetch(base + "/metrics", headers=headers)
    metrics = json.loads(body)
    same(status, 200)
    assert metrics["mem_total"] >= metrics["mem_used"] > 0 and metrics["cpu_count"] >= 1 and metrics["disk_total"] > 0, metrics
    for path in ["/init", "/freeze", "/unfreeze", "/fsfreeze", "/upgrade"]:
        status, body = fetch(base + path, b"{}", headers)
        same((status, json.loads(body)["code"]), (404, 404))


with Sandbox.create(timeout=120, envs={"GREETING": "hello"}) as sandbox:
    for part in [contents, several, compressed, metadata, changed, refused]:
        part(sandbox.files)
    for part in [entry_info, listed, users, full, watched, signed, inside]:
        part(sandbox)

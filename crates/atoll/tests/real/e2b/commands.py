"""Commands and terminals, with the synchronous client."""

import time

from e2b import (
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    SandboxException,
    TimeoutException,
)
from e2b import PtySize

from expect import raises, same, until


def runs(sandbox):
    run = sandbox.commands.run
    result = run("echo out; echo err >&2")
    same((result.stdout, result.stderr, result.exit_code, result.error), ("out\n", "err\n", 0, None))
    stdout, stderr = [], []
    run("echo out; echo err >&2", on_stdout=stdout.append, on_stderr=stderr.append)
    same(("".join(stdout), "".join(stderr)), ("out\n", "err\n"))
    # A login shell in the home directory.
    same(run("echo $0 $HOME $USER $LOGNAME; pwd").stdout, "/bin/bash /home/user user user\n/home/user\n")
    same(run("pwd", cwd="/tmp").stdout, "/tmp\n")
    run("mkdir -p below/here")
    same(run("pwd", cwd="below/here").stdout, "/home/user/below/here\n")
    same(run("whoami; echo $HOME", user="root").stdout, "root\n/root\n")
    same(run("whoami", user="user").stdout, "user\n")
    same(run("sudo whoami").stdout, "root\n")
    # Variables of a command take precedence over those of the sandbox.
    same(run("echo $ONE $TWO").stdout, "1 2\n")
    same(run("echo $ONE $TWO $THREE", envs={"TWO": "two", "THREE": "three"}).stdout, "1 two three\n")
    same(run("cat").stdout, "")
    same(run("printf 'é🦀%.0s' $(seq 50000)").stdout, "é🦀" * 50_000)
    same(run("for tool in python python3 sudo curl git; do command -v $tool >/dev/null || echo $tool; done").stdout, "")


def failures(sandbox):
    run = sandbox.commands.run
    with raises(CommandExitException) as caught:
        run("echo half; echo why >&2; exit 3")
    error = caught.error
    same((error.exit_code, error.stdout, error.stderr, error.error), (3, "half\n", "why\n", "exit status 3"))
    with raises(CommandExitException) as caught:
        run("kill -9 $$")
    same((caught.error.exit_code, caught.error.error), (-1, "signal: killed"))
    with raises(InvalidArgumentException, "cwd '/nowhere' does not exist"):
        run("true", cwd="/nowhere")
    with raises(AuthenticationException, "invalid username: 'no-such-user'"):
        run("true", user="no-such-user")
    # The timeout also kills the process.
    with raises(TimeoutException):
        run("exec -a at-its-deadline sleep 600", timeout=1)
    until("its end", lambda: run("pgrep -cf '^at-its-deadline' || true").stdout == "0\n")


def background(sandbox):
    commands = sandbox.commands
    handle = commands.run("echo first; read line; echo got $line; cat", background=True, stdin=True)
    # The pid is valid in the sandbox.
    commands.run(f"kill -0 {handle.pid}")
    listed = [info for info in commands.list() if info.pid == handle.pid]
    same([(info.cmd, info.args[:2]) for info in listed], [("/bin/bash", ["-l", "-c"])])
    commands.send_stdin(handle.pid, "a line\n")
    commands.send_stdin(handle.pid, b"bytes\n")
    handle.send_stdin("of the handle\n")
    commands.close_stdin(handle.pid)
    same(handle.wait().stdout, "first\ngot a line\nbytes\nof the handle\n")
    # Input by methods of the handle.
    handle = commands.run("cat", background=True, stdin=True)
    handle.send_stdin("by the handle\n")
    handle.close_stdin()
    same(handle.wait().stdout, "by the handle\n")
    # The exit status is available for a while after the end.
    same(commands.connect(handle.pid).wait().exit_code, 0)
    with raises(SandboxException):
        commands.send_stdin(handle.pid, "too late")
    same([info for info in commands.list() if info.pid == handle.pid], [])
    # A command without stdin rejects input.
    handle = commands.run("sleep 600", background=True)
    with raises(SandboxException):
        commands.send_stdin(handle.pid, "unread")
    same(commands.kill(handle.pid), True)
    with raises(CommandExitException) as caught:
        handle.wait()
    same((caught.error.exit_code, caught.error.error), (-1, "signal: killed"))
    same(commands.kill(handle.pid), False)
    same(commands.kill(999_999), False)
    # A closed input stays closed.
    handle = commands.run("cat; sleep 600", background=True, stdin=True)
    commands.close_stdin(handle.pid)
    with raises(SandboxException):
        commands.send_stdin(handle.pid, "too late")
    same(handle.kill(), True)
    # A disconnect does not end the command; a reconnect receives output from then on.
    handle = commands.run("read line; echo $line", background=True, stdin=True)
    handle.disconnect()
    reconnected = commands.connect(handle.pid)
    commands.send_stdin(reconnected.pid, "still here\n")
    same(reconnected.wait().stdout, "still here\n")
    with raises(NotFoundException):
        commands.connect(999_999)
    # A killed shell ends although its children hold its output open.
    handle = commands.run("sleep 600 & wait", background=True)
    handle.kill()
    with raises(CommandExitException):
        handle.wait()


def streamed_input(sandbox):
    commands = sandbox.commands
    if not hasattr(commands, "stream_input"):
        return
    handle = commands.run("cat", background=True, stdin=True)
    commands.stream_input(handle.pid, (f"{n}\n" for n in range(1000)))
    commands.close_stdin(handle.pid)
    same(handle.wait().stdout, "".join(f"{n}\n" for n in range(1000)))
    with raises(NotFoundException):
        commands.stream_input(999_999, ["x"])


def terminals(sandbox):
    pty = sandbox.pty
    handle = pty.create(PtySize(rows=24, cols=80), cwd="/tmp", envs={"MINE": "yes"})
    pty.send_stdin(handle.pid, b"stty size; pwd; echo $MINE $TERM $LANG\n")
    pty.resize(handle.pid, PtySize(rows=30, cols=100))
    pty.send_stdin(handle.pid, b"stty size; exit 7\n")
    seen = bytearray()
    with raises(CommandExitException) as caught:
        handle.wait(on_pty=seen.extend)
    same(caught.error.exit_code, 7)
    for words in [b"/tmp\r\n", b"yes xterm-256color C.UTF-8", b"30 100"]:
        assert words in seen, (words, bytes(seen))
    handle = pty.create(PtySize(rows=24, cols=80), user="root")
    same(pty.kill(handle.pid), True)
    with raises(CommandExitException):
        handle.wait()
    same(pty.kill(handle.pid), False)
    # A client that reattaches to a terminal receives its output from then on.
    handle = pty.create(PtySize(rows=24, cols=80))
    handle.disconnect()
    reconnected = pty.connect(handle.pid)
    same(reconnected.pid, handle.pid)
    pty.send_stdin(handle.pid, b"echo still $((20 + 22)); exit\n")
    seen.clear()
    reconnected.wait(on_pty=seen.extend)
    assert b"still 42" in seen, bytes(seen)
    with raises(NotFoundException):
        pty.connect(999_999)
    if hasattr(pty, "stream_input"):
        handle = pty.create(PtySize(rows=24, cols=80))
        pty.stream_input(handle.pid, ["echo one", " two\n", b"exit\n"])
        seen.clear()
        handle.wait(on_pty=seen.extend)
        assert b"\rone two\r\n" in seen or b"\none two\r\n" in seen, bytes(seen)


def sandbox_ends():
    """If its sandbox is killed or its lifetime ends, a command fails with the client's error for that, not with an
    exit code."""
    gone = "was killed or reached its end of life"
    for end in [Sandbox.kill, lambda sandbox: sandbox.set_timeout(0)]:
        sandbox = Sandbox.create(timeout=60)
        handle = sandbox.commands.run("echo begun; sleep 600", background=True)
        terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
        begin = time.monotonic()
        end(sandbox)
        # The client raises a TimeoutException for a sandbox that no longer exists.
        with raises(TimeoutException, gone):
            handle.wait()
        with raises(TimeoutException, gone):
            terminal.wait()
        assert time.monotonic() - begin < 60
        with raises(TimeoutException):
            sandbox.commands.run("true")
        with raises(TimeoutException):
            sandbox.files.read("x")
        same(sandbox.is_running(), False)


with Sandbox.create(timeout=300, envs={"ONE": "1", "TWO": "2"}) as sandbox:
    runs(sandbox)
    failures(sandbox)
    background(sandbox)
    streamed_input(sandbox)
    terminals(sandbox)
sandbox_ends()

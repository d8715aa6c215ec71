// Commands and terminals, with the client for JavaScript.

import assert from 'node:assert/strict'
import {
  AuthenticationError,
  CommandExitError,
  InvalidArgumentError,
  NotFoundError,
  Sandbox,
  SandboxError,
  SandboxNotFoundError,
  TimeoutError,
} from 'e2b'

const same = assert.deepEqual
const text = new TextDecoder()

async function runs({ commands }) {
  const result = await commands.run('echo out; echo err >&2')
  same([result.stdout, result.stderr, result.exitCode, result.error], ['out\n', 'err\n', 0, undefined])
  let [stdout, stderr] = ['', '']
  await commands.run('echo out; echo err >&2', {
    onStdout: (data) => void (stdout += data),
    onStderr: (data) => void (stderr += data),
  })
  same([stdout, stderr], ['out\n', 'err\n'])
  same((await commands.run('pwd; whoami', { cwd: '/tmp', user: 'root' })).stdout, '/tmp\nroot\n')
  same((await commands.run('echo $ONE $TWO', { envs: { TWO: 'two' } })).stdout, '1 two\n')
  same((await commands.run("printf 'é🦀%.0s' $(seq 50000)")).stdout, 'é🦀'.repeat(50_000))
}

async function failures({ commands }) {
  const ended = await commands.run('echo half; echo why >&2; exit 3').catch((error) => error)
  assert(ended instanceof CommandExitError, `${ended}`)
  same([ended.exitCode, ended.stdout, ended.stderr, ended.error], [3, 'half\n', 'why\n', 'exit status 3'])
  const fails = async (kind, words, doing) => {
    const error = await doing.then(() => assert.fail(`${kind.name} was expected`), (error) => error)
    assert(error instanceof kind, `${error} is no ${kind.name}`)
    assert(error.message.includes(words), error.message)
  }
  await fails(InvalidArgumentError, "cwd '/nowhere' does not exist", commands.run('true', { cwd: '/nowhere' }))
  await fails(AuthenticationError, "invalid username: 'no-such-user'", commands.run('true', { user: 'no-such-user' }))
  await fails(TimeoutError, '', commands.run('sleep 600', { timeoutMs: 1000 }))
  await fails(NotFoundError, '999999', commands.connect(999_999))
}

async function background({ commands }) {
  const handle = await commands.run('read line; echo got $line; cat', { background: true, stdin: true })
  await commands.run(`kill -0 ${handle.pid}`)
  const listed = (await commands.list()).filter((info) => info.pid === handle.pid)
  same(listed.map((info) => [info.cmd, info.args.slice(0, 2)]), [['/bin/bash', ['-l', '-c']]])
  await commands.sendStdin(handle.pid, 'a line\n')
  await commands.sendStdin(handle.pid, 'more\n')
  await commands.closeStdin(handle.pid)
  same((await handle.wait()).stdout, 'got a line\nmore\n')
  await assert.rejects(commands.sendStdin(handle.pid, 'too late'), SandboxError)
  // Input by methods of the handle.
  const own = await commands.run('cat', { background: true, stdin: true })
  await own.sendStdin('by the handle\n')
  await own.closeStdin()
  same((await own.wait()).stdout, 'by the handle\n')
  // The exit status is available for a while after the end.
  same((await (await commands.connect(own.pid)).wait()).exitCode, 0)
  // A disconnect does not end the command.
  const detached = await commands.run('read line; echo $line', { background: true, stdin: true })
  await detached.disconnect()
  const reconnected = await commands.connect(detached.pid)
  await commands.sendStdin(detached.pid, 'still here\n')
  same((await reconnected.wait()).stdout, 'still here\n')
  const sleeper = await commands.run('sleep 600', { background: true })
  same(await commands.kill(sleeper.pid), true)
  await assert.rejects(sleeper.wait(), CommandExitError)
  same(await commands.kill(sleeper.pid), false)
}

async function terminals({ pty }) {
  let seen = ''
  const onData = (data) => void (seen += text.decode(data))
  const handle = await pty.create({ cols: 80, rows: 24, cwd: '/tmp', envs: { MINE: 'yes' }, onData })
  await pty.resize(handle.pid, { cols: 100, rows: 30 })
  await pty.sendInput(handle.pid, new TextEncoder().encode('stty size; pwd; echo $MINE $TERM; exit 7\n'))
  const ended = await handle.wait().catch((error) => error)
  same(ended.exitCode, 7)
  assert(seen.includes('30 100\r\n/tmp\r\nyes xterm-256color\r\n'), seen)
  const other = await pty.create({ cols: 80, rows: 24, onData })
  same(await pty.kill(other.pid), true)
  await assert.rejects(other.wait(), CommandExitError)
  same(await pty.kill(other.pid), false)
  // A client that reattaches to a terminal receives its output from then on.
  const detached = await pty.create({ cols: 80, rows: 24, onData })
  await detached.disconnect()
  let reconnected = ''
  const back = await pty.connect(detached.pid, { onData: (data) => void (reconnected += text.decode(data)) })
  await pty.sendInput(detached.pid, new TextEncoder().encode('echo still $((20 + 22)); exit\n'))
  await back.wait()
  assert(reconnected.includes('still 42'), reconnected)
}

/** If its sandbox is killed or its lifetime ends, a command fails with the client's error for that, not with an exit code. */
async function sandboxEnds() {
  for (const end of [(sandbox) => sandbox.kill(), (sandbox) => sandbox.setTimeout(0)]) {
    const sandbox = await Sandbox.create({ timeoutMs: 60_000 })
    const handle = await sandbox.commands.run('echo begun; sleep 600', { background: true })
    const ended = assert.rejects(handle.wait(), (error) =>
      error instanceof TimeoutError && error.message.includes('was killed or reached its end of life'))
    await end(sandbox)
    await ended
    // Before its first event a stream fails with another class of error.
    await assert.rejects(sandbox.commands.run('true'), (error) =>
      [TimeoutError, SandboxNotFoundError].some((kind) => error instanceof kind))
    await assert.rejects(sandbox.files.read('x'), TimeoutError)
    same(await sandbox.isRunning(), false)
  }
}

const sandbox = await Sandbox.create({ timeoutMs: 300_000, envs: { ONE: '1', TWO: '2' } })
try {
  await runs(sandbox)
  await failures(sandbox)
  await background(sandbox)
  await terminals(sandbox)
} finally {
  await sandbox.kill()
}
await sandboxEnds()

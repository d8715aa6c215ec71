// The quick start example.

import assert from 'node:assert/strict'
import { Sandbox } from 'e2b'

const sandbox = await Sandbox.create({ timeoutMs: 60_000 })
try {
  assert.equal(await sandbox.isRunning(), true)
  assert.equal((await sandbox.commands.run('echo hello')).stdout, 'hello\n')
} finally {
  await sandbox.kill()
}
assert.equal(await sandbox.isRunning(), false)

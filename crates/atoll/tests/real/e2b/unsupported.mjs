// Features that are not implemented: each returns an error that says so.

import assert from 'node:assert/strict'
import { AuthenticationError, Sandbox, Secret, Template, Volume } from 'e2b'

const template = Template().fromImage('debian').runCmd('true')
const sandbox = await Sandbox.create({ timeoutMs: 60_000 })
try {
  for (const [feature, call] of [
    ['forks', () => sandbox.fork()],
    ['snapshots', () => sandbox.createSnapshot()],
    ['snapshots', () => sandbox.listSnapshots().nextItems()],
    ['template', () => Template.build(template, 'x')],
    ['template', () => Template.exists('x')],
    ['volumes', () => Volume.create('x')],
    ['volumes', () => Volume.list()],
    ['secrets', () => Secret.create('x', 'y')],
    ['secrets', () => Secret.list().nextItems()],
    ['code interpreter', () => Sandbox.create('code-interpreter-v1', { timeoutMs: 60_000 })],
  ]) {
    const error = await call().then(() => assert.fail(`${feature}: nothing happened`), (error) => error)
    assert.match(error.message, /does not support/, feature)
    assert(error.message.includes(feature), error.message)
  }
  // A request without a key gets only the authentication error.
  await assert.rejects(Volume.list({ apiKey: 'e2b_' + '0'.repeat(64) }), AuthenticationError)
} finally {
  await sandbox.kill()
}

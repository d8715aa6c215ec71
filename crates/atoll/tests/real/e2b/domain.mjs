// The client is configured with a domain only: the API and each port of a sandbox have host names, reached by TLS.

import assert from 'node:assert/strict'
import { Sandbox } from 'e2b'

const domain = process.env.E2B_DOMAIN
const sandbox = await Sandbox.create({ timeoutMs: 60_000 })
assert.equal(sandbox.getHost(8000), `8000-${sandbox.sandboxId}.${domain}`)
assert.equal(await sandbox.isRunning(), true)
assert.equal((await sandbox.commands.run('echo hello')).stdout, 'hello\n')
await sandbox.files.write('page', 'a page')
assert.equal(await sandbox.files.read('page'), 'a page')
await sandbox.kill()
assert.equal(await sandbox.isRunning(), false)

// A server with a low rate limit: calls and streams above it fail with the rate limit error.

import assert from 'node:assert/strict'
import { RateLimitError, Sandbox } from 'e2b'

const sandbox = await Sandbox.create({ timeoutMs: 60_000 })
for (const call of [
  () => sandbox.commands.run('true'),
  () => sandbox.commands.list(),
  () => sandbox.files.list('/'),
  () => sandbox.files.read('/etc/hostname'),
]) {
  const all = await Promise.allSettled(Array.from({ length: 30 }, call))
  const refused = all.filter((one) => one.status === 'rejected').map((one) => one.reason)
  assert(refused.length > 0, `${call}`)
  for (const error of refused) assert(error instanceof RateLimitError, `${call}: ${error}`)
}

// Sandboxes, with the client for JavaScript.

import assert from 'node:assert/strict'
import { AuthenticationError, Sandbox, SandboxError, SandboxNotFoundError } from 'e2b'

const same = assert.deepEqual
const UNKNOWN = 'i' + '0'.repeat(20)

function endsIn(info, seconds) {
  const left = (info.endAt - Date.now()) / 1000
  assert(Math.abs(left - seconds) < 10, `${left} is not about ${seconds}`)
}

async function until(what, condition) {
  const end = Date.now() + 60_000
  while (!(await condition())) assert(Date.now() < end, `waited for ${what}`)
}

/** What our own API says. */
async function ours(method, path, body) {
  const headers = { 'X-API-Key': process.env.E2B_API_KEY, 'Content-Type': 'application/json' }
  const answer = await fetch(process.env.E2B_SANDBOX_URL + path, { method, headers, body: JSON.stringify(body) })
  assert(answer.ok, `${method} ${path}: ${answer.status}`)
  return answer.status === 204 ? undefined : answer.json()
}

async function facts() {
  const sandbox = await Sandbox.create('base', { timeoutMs: 100_000, metadata: { who: 'a b&c=ü' } })
  const info = await sandbox.getInfo()
  same([info.sandboxId, info.templateId, info.state], [sandbox.sandboxId, 'base', 'running'])
  same([info.metadata, info.envdVersion], [{ who: 'a b&c=ü' }, '0.6.13'])
  endsIn(info, 100)
  await sandbox.setTimeout(50_000)
  const before = await sandbox.getInfo()
  endsIn(before, 50)
  const other = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 10_000 })
  same((await other.getInfo()).endAt, before.endAt)
  const seen = await ours('GET', `/sandboxes/${sandbox.sandboxId}`)
  same([seen.state, seen.metadata], ['running', info.metadata])
  same([await sandbox.kill(), await sandbox.kill(), await sandbox.isRunning()], [true, false, false])
  const made = await ours('POST', '/sandboxes', { template: 'base', timeout: 60 })
  const found = await Sandbox.connect(made.sandboxID)
  same((await found.commands.run('echo hello')).stdout, 'hello\n')
  same(await found.kill(), true)
}

async function pauses() {
  const sandbox = await Sandbox.create({ timeoutMs: 100_000 })
  const boot = async () => (await sandbox.commands.run('cat /proc/sys/kernel/random/boot_id')).stdout
  const first = await boot()
  same(await sandbox.pause(), true)
  same([await sandbox.isRunning(), await sandbox.pause()], [false, false])
  await sandbox.connect({ timeoutMs: 100_000 })
  same(await boot(), first)
  await sandbox.pause({ keepMemory: false })
  await sandbox.connect()
  assert.notEqual(await boot(), first)
  await sandbox.kill()
  const wakes = await Sandbox.create({ timeoutMs: 100_000, lifecycle: { onTimeout: 'pause', autoResume: true } })
  same((await wakes.getInfo()).lifecycle, { onTimeout: 'pause', autoResume: true })
  await wakes.setTimeout(0)
  await until('the pause', async () => (await wakes.getInfo()).state === 'paused')
  same((await wakes.commands.run('echo awake')).stdout, 'awake\n')
  await wakes.kill()
}

async function everyPage(opts) {
  const found = []
  const paginator = Sandbox.list(opts)
  while (paginator.hasNext) found.push(...(await paginator.nextItems()))
  return found.map((info) => info.sandboxId)
}

async function lists() {
  const mine = { suite: 'list of a+b %20 ü' }
  const made = []
  for (const n of ['0', '1', '2']) made.push(await Sandbox.create({ timeoutMs: 100_000, metadata: { ...mine, n } }))
  const ids = made.map((sandbox) => sandbox.sandboxId)
  const newest = ids.toReversed()
  same(await everyPage({ query: { metadata: mine } }), newest)
  same(await everyPage({ query: { metadata: mine }, limit: 1 }), newest)
  same(await everyPage({ query: { metadata: { ...mine, n: '1' } } }), [ids[1]])
  await made[0].pause()
  same(await everyPage({ query: { metadata: mine, state: ['running'] } }), newest.slice(0, 2))
  same(await everyPage({ query: { metadata: mine, state: ['paused'] } }), [ids[0]])
  for (const sandbox of made) await sandbox.kill()
  same(await everyPage({ query: { metadata: mine } }), [])
}

async function networks() {
  const closed = await Sandbox.create({ timeoutMs: 100_000, allowInternetAccess: false })
  same((await closed.getInfo()).allowInternetAccess, false)
  await closed.kill()
  const network = { allowOut: ['1.1.1.1'], denyOut: ['0.0.0.0/0'] }
  const sandbox = await Sandbox.create({ timeoutMs: 100_000, network })
  const found = (await sandbox.getInfo()).network
  same([found.allowOut, found.denyOut], [network.allowOut, network.denyOut])
  await sandbox.updateNetwork({ denyOut: ['8.8.8.8'] })
  same((await sandbox.getInfo()).network.denyOut, ['8.8.8.8'])
  const [metric] = await sandbox.getMetrics()
  assert(metric.memUsed > 0 && metric.memUsed <= metric.memTotal && metric.cpuCount >= 1, JSON.stringify(metric))
  await sandbox.kill()
}

async function refusals() {
  await assert.rejects(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(64) }), AuthenticationError)
  await assert.rejects(Sandbox.connect(UNKNOWN), SandboxNotFoundError)
  await assert.rejects(Sandbox.getInfo(UNKNOWN), SandboxNotFoundError)
  await assert.rejects(Sandbox.setTimeout(UNKNOWN, 1000), SandboxNotFoundError)
  same(await Sandbox.kill(UNKNOWN), false)
  await assert.rejects(Sandbox.create('no-such-template'), /no-such-template/)
  const domains = { allowOut: ['example.com'], denyOut: ['0.0.0.0/0'] }
  await assert.rejects(Sandbox.create({ network: domains }), SandboxError)
}

await facts()
await pauses()
await lists()
await networks()
await refusals()

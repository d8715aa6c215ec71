// Sandboxes, with the client for JavaScript.

import assert from 'node:assert/strict'
import { AuthenticationError, Sandbox, SandboxError, SandboxNotFoundError } from 'e2b'

const same = assert.deepEqual
const UNKNOWN = 'i' + '0'.repeat(20)

function endsIn(info, seconds) {
  const left = (info.endAt - Date.now()) / 1000
  assert(Math.abs(left - seconds) < 10, `${left} is not about ${seconds}`)
}

async function until(description, condition) {
  const deadline = Date.now() + 60_000
  while (!(await condition())) assert(Date.now() < deadline, `waited for ${description}`)
}

/** Calls Atoll's API. */
async function atollApi(method, path, body) {
  const headers = { 'X-API-Key': process.env.E2B_API_KEY, 'Content-Type': 'application/json' }
  const response = await fetch(process.env.E2B_SANDBOX_URL + path, { method, headers, body: JSON.stringify(body) })
  assert(response.ok, `${method} ${path}: ${response.status}`)
  return response.status === 204 ? undefined : response.json()
}

async function basics() {
  const sandbox = await Sandbox.create('base', { timeoutMs: 100_000, metadata: { label: 'a b&c=ü' } })
  const info = await sandbox.getInfo()
  same([info.sandboxId, info.templateId, info.state], [sandbox.sandboxId, 'base', 'running'])
  same([info.metadata, info.envdVersion], [{ label: 'a b&c=ü' }, '0.6.13'])
  endsIn(info, 100)
  await sandbox.setTimeout(50_000)
  const before = await sandbox.getInfo()
  endsIn(before, 50)
  const other = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 10_000 })
  same((await other.getInfo()).endAt, before.endAt)
  const details = await atollApi('GET', `/sandboxes/${sandbox.sandboxId}`)
  same([details.state, details.metadata], ['running', info.metadata])
  same([await sandbox.kill(), await sandbox.kill(), await sandbox.isRunning()], [true, false, false])
  const created = await atollApi('POST', '/sandboxes', { template: 'base', timeout: 60 })
  const found = await Sandbox.connect(created.sandboxID)
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
  const autoResumed = await Sandbox.create({ timeoutMs: 100_000, lifecycle: { onTimeout: 'pause', autoResume: true } })
  same((await autoResumed.getInfo()).lifecycle, { onTimeout: 'pause', autoResume: true })
  await autoResumed.setTimeout(0)
  await until('the pause', async () => (await autoResumed.getInfo()).state === 'paused')
  same((await autoResumed.commands.run('echo awake')).stdout, 'awake\n')
  await autoResumed.kill()
}

async function everyPage(opts) {
  const found = []
  const paginator = Sandbox.list(opts)
  while (paginator.hasNext) found.push(...(await paginator.nextItems()))
  return found.map((info) => info.sandboxId)
}

async function lists() {
  const metadata = { suite: 'list of a+b %20 ü' }
  const created = []
  for (const n of ['0', '1', '2']) created.push(await Sandbox.create({ timeoutMs: 100_000, metadata: { ...metadata, n } }))
  const ids = created.map((sandbox) => sandbox.sandboxId)
  const newest = ids.toReversed()
  same(await everyPage({ query: { metadata } }), newest)
  same(await everyPage({ query: { metadata }, limit: 1 }), newest)
  same(await everyPage({ query: { metadata: { ...metadata, n: '1' } } }), [ids[1]])
  await created[0].pause()
  same(await everyPage({ query: { metadata, state: ['running'] } }), newest.slice(0, 2))
  same(await everyPage({ query: { metadata, state: ['paused'] } }), [ids[0]])
  for (const sandbox of created) await sandbox.kill()
  same(await everyPage({ query: { metadata } }), [])
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

async function errors() {
  await assert.rejects(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(64) }), AuthenticationError)
  await assert.rejects(Sandbox.connect(UNKNOWN), SandboxNotFoundError)
  await assert.rejects(Sandbox.getInfo(UNKNOWN), SandboxNotFoundError)
  await assert.rejects(Sandbox.setTimeout(UNKNOWN, 1000), SandboxNotFoundError)
  same(await Sandbox.kill(UNKNOWN), false)
  await assert.rejects(Sandbox.create('no-such-template'), /no-such-template/)
  const domains = { allowOut: ['example.com'], denyOut: ['0.0.0.0/0'] }
  await assert.rejects(Sandbox.create({ network: domains }), SandboxError)
}

await basics()
await pauses()
await lists()
await networks()
await errors()

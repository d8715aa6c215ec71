// Files, with the client for JavaScript.

import assert from 'node:assert/strict'
import {
  AuthenticationError,
  FileNotFoundError,
  FilesystemEventType,
  FileType,
  InvalidArgumentError,
  NotEnoughSpaceError,
  Sandbox,
} from 'e2b'

const same = assert.deepEqual
const text = new TextDecoder()

async function contents(files) {
  const info = await files.write('hello.txt', 'hello')
  same([info.name, info.path, info.type], ['hello.txt', '/home/user/hello.txt', FileType.FILE])
  same(await files.read('hello.txt'), 'hello')
  same(text.decode(await files.read('hello.txt', { format: 'bytes' })), 'hello')
  same(await (await files.read('hello.txt', { format: 'blob' })).text(), 'hello')
  let streamed = ''
  for await (const chunk of await files.read('hello.txt', { format: 'stream' })) streamed += text.decode(chunk)
  same(streamed, 'hello')
  await files.write('buffer', new Uint8Array([0, 255, 7]).buffer)
  same([...(await files.read('buffer', { format: 'bytes' }))], [0, 255, 7])
  await files.write('blob', new Blob(['blob']))
  same(await files.read('blob'), 'blob')
  await files.write('stream', new Blob(['stream']).stream())
  same(await files.read('stream'), 'stream')
  await files.write('empty', '')
  same(await files.read('empty'), '')
  for (const name of ['with space', 'ünïcödé 🦀', 'quo"te', 'per%20cent']) {
    same((await files.write(name, name)).path, `/home/user/${name}`)
    same(await files.read(name), name)
  }
  same((await files.read('/proc/sys/kernel/random/boot_id')).trim().length, 36)
  const written = await files.write([
    { path: 'a/1', data: 'one' },
    { path: '/tmp/2', data: 'two' },
    { path: 'q"d/3', data: 'three' },
  ])
  same(written.map((it) => it.path), ['/home/user/a/1', '/tmp/2', '/home/user/q"d/3'])
  same(await files.read('q"d/3'), 'three')
  await files.writeFiles([{ path: 'b/1', data: 'x' }])
  await files.write('packed', 'gzip '.repeat(100_000), { gzip: true })
  same(await files.read('packed', { gzip: true }), 'gzip '.repeat(100_000))
  same((await files.write('labelled', 'x', { metadata: { Key: 'value' } })).metadata, { key: 'value' })
  same((await files.getInfo('labelled')).metadata, { key: 'value' })
}

async function tree(sandbox) {
  const files = sandbox.files
  same(await files.makeDir('t/u'), true)
  same(await files.makeDir('t/u'), false)
  await files.write('t/u/file', '12345')
  await sandbox.commands.run('ln -s u/file t/link')
  const listed = await files.list('t', { depth: 2 })
  same(listed.map((it) => it.path), ['/home/user/t/link', '/home/user/t/u', '/home/user/t/u/file'])
  const [link, directory, file] = listed
  same([link.type, link.symlinkTarget, link.permissions], [FileType.FILE, '/home/user/t/u/file', 'Lrwxrwxrwx'])
  same([directory.type, directory.permissions, directory.size > 0], [FileType.DIR, 'drwxr-xr-x', true])
  same([file.size, file.mode, file.owner, file.group], [5, 0o644, 'user', 'user'])
  assert.ok(Math.abs(Date.now() - file.modifiedTime.getTime()) < 60_000)
  same((await files.rename('t/u/file', 't/new/moved')).path, '/home/user/t/new/moved')
  same(await files.exists('t/u/file'), false)
  same((await files.getInfo('/root', { user: 'root' })).owner, 'root')
  await files.remove('t')
  same(await files.exists('t'), false)
  await files.remove('t')
}

async function refused(files) {
  await assert.rejects(files.read('missing'), FileNotFoundError)
  await assert.rejects(files.getInfo('missing'), FileNotFoundError)
  await assert.rejects(files.list('missing'), FileNotFoundError)
  await assert.rejects(files.rename('missing', 'x'), FileNotFoundError)
  await assert.rejects(files.list('hello.txt'), InvalidArgumentError)
  await assert.rejects(files.read('/tmp'), InvalidArgumentError)
  await assert.rejects(files.write('/tmp', 'x'), InvalidArgumentError)
  await assert.rejects(files.read('hello.txt', { user: 'no-such-user' }), AuthenticationError)
  await assert.rejects(files.list('.', { user: 'no-such-user' }), AuthenticationError)
}

async function full(sandbox) {
  const fill = 'fallocate -l $(($(df --output=avail -B1 /run | tail -1) - 1048576)) /run/filler'
  await sandbox.commands.run(fill, { user: 'root' })
  await assert.rejects(sandbox.files.write('/run/large', new ArrayBuffer(8 << 20)), NotEnoughSpaceError)
}

async function watched(files) {
  const kind = FilesystemEventType
  const seen = []
  let wake = () => {}
  const onEvent = (event) => {
    seen.push(event)
    wake()
  }
  const until = async (condition) => {
    const timeout = AbortSignal.timeout(60_000)
    while (!condition()) {
      timeout.throwIfAborted()
      await new Promise((resolve) => {
        wake = resolve
        timeout.addEventListener('abort', resolve, { once: true })
      })
    }
  }
  await files.makeDir('w')
  const handle = await files.watchDir('w', onEvent, { recursive: true, includeEntry: true })
  await files.write('w/new', '12345')
  await until(() => seen.length >= 3)
  same(seen.map((it) => [it.type, it.name]), [[kind.CREATE, 'new'], [kind.CHMOD, 'new'], [kind.WRITE, 'new']])
  same(seen[2].entry.path, '/home/user/w/new')
  await files.write('w/deep/file', 'x')
  await until(() => seen.some((it) => it.name === 'deep/file' && it.type === kind.WRITE))
  await files.rename('w/new', 'w/old')
  await until(() => seen.some((it) => it.name === 'old' && it.type === kind.CREATE))
  assert.ok(seen.some((it) => it.name === 'new' && it.type === kind.RENAME))
  await files.remove('w/old')
  await until(() => seen.some((it) => it.name === 'old' && it.type === kind.REMOVE))
  await handle.stop()
  await assert.rejects(files.watchDir('missing', onEvent), FileNotFoundError)
  await assert.rejects(files.watchDir('hello.txt', onEvent), InvalidArgumentError)
}

async function signed(sandbox) {
  await sandbox.files.write('signed', 'here')
  for (const options of [{}, { user: 'root' }, { useSignatureExpiration: 60_000 }]) {
    const response = await fetch(await sandbox.downloadUrl('/home/user/signed', options))
    same([response.status, await response.text()], [200, 'here'])
  }
  const expired = await fetch(await sandbox.downloadUrl('signed', { useSignatureExpiration: -120_000 }))
  same([expired.status, await expired.json()], [401, { code: 401, message: 'signature is already expired' }])
  const form = new FormData()
  form.append('file', new Blob(['sent']), 'ignored')
  const sent = await fetch(await sandbox.uploadUrl('sent', { useSignatureExpiration: 60_000 }), {
    method: 'POST',
    body: form,
  })
  same([sent.status, await sent.json()], [200, [{ name: 'sent', path: '/home/user/sent', type: 'file' }]])
  same(await sandbox.files.read('sent'), 'sent')
  const forged = (await sandbox.downloadUrl('signed')).replace('path=signed', 'path=sent')
  same((await fetch(forged)).status, 401)
}

const sandbox = await Sandbox.create({ timeoutMs: 120_000 })
try {
  await contents(sandbox.files)
  await tree(sandbox)
  await refused(sandbox.files)
  await watched(sandbox.files)
  await signed(sandbox)
  await full(sandbox)
} finally {
  await sandbox.kill()
}

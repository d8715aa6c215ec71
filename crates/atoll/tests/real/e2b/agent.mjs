// An agent like the ones in E2B's examples: a model requests tools, which run in a sandbox, until it has the result.
// Here the model is a script, so that the program needs no external service.

import assert from 'node:assert/strict'
import { CommandExitError, Sandbox } from 'e2b'

const PROGRAM = `
import json, sys
numbers = [int(word) for word in sys.argv[1:]]
print(json.dumps({"sum": sum(numbers), "largest": max(numbers)}))
`

const TOOLS = {
  writeFile: async (sandbox, { path, content }) => (await sandbox.files.write(path, content)).path,
  runCommand: async (sandbox, { command }) => {
    try {
      return (await sandbox.commands.run(command)).stdout
    } catch (error) {
      if (!(error instanceof CommandExitError)) throw error
      return `exit code ${error.exitCode}: ${error.stderr}`
    }
  },
  readFile: (sandbox, { path }) => sandbox.files.read(path),
  serve: async (sandbox, { directory, port }) => {
    await sandbox.commands.run(`python3 -m http.server ${port} --directory ${directory}`, { background: true })
    return `https://${sandbox.getHost(port)}`
  },
  fetch: async (sandbox, { url }) => {
    const deadline = Date.now() + 60_000
    for (;;) {
      const response = await fetch(url)
      if (response.ok) return response.text()
      // The server in the sandbox does not listen yet.
      assert(response.status === 502 && Date.now() < deadline, `${response.status}`)
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
  },
}

/** Requests one tool after another; each request depends on the earlier results. */
function* model() {
  const failed = yield ['runCommand', { command: 'python3 numbers/count.py 1 2 3' }]
  assert(failed.startsWith('exit code 2'), failed)
  const path = yield ['writeFile', { path: 'numbers/count.py', content: PROGRAM }]
  const output = yield ['runCommand', { command: `python3 ${path} 4 8 15 16 23 42 | tee result.json` }]
  const content = yield ['readFile', { path: 'result.json' }]
  assert.deepEqual([content, output], ['{"sum": 108, "largest": 42}\n', content])
  yield ['writeFile', { path: 'site/index.html', content: `<h1>${content.trim()}</h1>` }]
  const url = yield ['serve', { directory: 'site', port: 8000 }]
  return yield ['fetch', { url }]
}

const sandbox = await Sandbox.create({ timeoutMs: 120_000 })
try {
  const requests = model()
  let step = requests.next()
  while (!step.done) {
    const [name, args] = step.value
    step = requests.next(await TOOLS[name](sandbox, args))
  }
  console.log(step.value)
  assert.equal(step.value, '<h1>{"sum": 108, "largest": 42}</h1>')
} finally {
  await sandbox.kill()
}

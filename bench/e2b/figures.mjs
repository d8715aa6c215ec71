// What E2B's client for Node needs for its usual calls. Prints a line of JSON for each figure.

import { Sandbox } from 'e2b'

async function filled() {
  for (;;) {
    const answer = await fetch(`${process.env.E2B_SANDBOX_URL}/readyz`)
    if ((await answer.json()).pool.warm >= 16) return
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
}

const tell = (figure, samples) => console.log(JSON.stringify({ figure, samples }))

async function create() {
  const begin = performance.now()
  const sandbox = await Sandbox.create()
  await sandbox.commands.run('true')
  const took = performance.now() - begin
  await sandbox.kill()
  return took
}

const created = []
// Warm: this one connects the client.
await create()
for (let number = 0; number < 100; number++) {
  if (number % 8 === 0) await filled()
  created.push(await create())
}
tell('node create', created)

const commands = []
const sandbox = await Sandbox.create()
for (let number = 0; number < 300; number++) {
  const begin = performance.now()
  await sandbox.commands.run('true')
  commands.push(performance.now() - begin)
}
await sandbox.kill()
tell('node command', commands)

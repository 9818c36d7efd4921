// Shared parts of the scenarios: `node main.cjs ADDRESS [SCENARIO]...` prints PASS or FAIL of each,
// `node main.cjs scenarios` their names.
'use strict'
const { randomBytes } = require('node:crypto')

const COUNT = 60
const DEADLINE_MS = 60_000

const unique = role => `${role}-${randomBytes(5).toString('hex')}`
const value = n => `value-${String(n).padStart(4, '0')}-abcdefghijklmnopqrstuvwxyz`
const values = count => Array.from({ length: count }, (_, n) => value(n))
const pause = ms => new Promise(resolve => setTimeout(resolve, ms))

/** Asks until the answer is true: a broker may show a change a moment later. */
async function eventually (ask, what) {
  const end = Date.now() + DEADLINE_MS
  for (;;) {
    const answer = await ask()
    if (answer) return answer
    if (Date.now() > end) throw new Error(`not in time: ${what}`)
    await pause(20)
  }
}

async function run (name, scenario, address) {
  let timer
  const late = new Promise((resolve, reject) => {
    timer = setTimeout(() => reject(new Error('hangs')), 2 * DEADLINE_MS)
  })
  try {
    await Promise.race([scenario(address), late])
    console.log(`PASS ${name}`)
    return true
  } catch (error) {
    console.log(`FAIL ${name}: ${String(error.stack).replaceAll('\n', ' | ')}`)
    return false
  } finally {
    clearTimeout(timer)
  }
}

async function main (scenarios) {
  const [address, ...asked] = process.argv.slice(2)
  if (address === 'scenarios') {
    console.log(Object.keys(scenarios).join('\n'))
    process.exit(0)
  }
  let failed = false
  for (const name of asked.length > 0 ? asked : Object.keys(scenarios)) {
    const scenario = scenarios[name] ?? (async () => { throw new Error('no such scenario') })
    failed = !(await run(name, scenario, address)) || failed
  }
  process.exit(failed ? 1 : 0)
}

module.exports = { COUNT, unique, value, values, pause, eventually, main }

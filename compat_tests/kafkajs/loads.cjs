// A client of compat_tests/security/loads.py: writes and reads without pause until the file of its argument exists.
'use strict'
const { existsSync, readFileSync } = require('node:fs')
const { randomBytes } = require('node:crypto')
const { Kafka, logLevel } = require('kafkajs')
const { chain, settingsOf } = require('./attempts.cjs')

const report = { acknowledged: [], received: [], errors: [] }
const pause = ms => new Promise(resolve => setTimeout(resolve, ms))

async function load (attempt, stop) {
  // Sessions last three seconds; with the default, 10 s, the client would begin a login before each request.
  const kafka = new Kafka({ ...settingsOf(attempt), reauthenticationThreshold: 1000, logLevel: logLevel.NOTHING })
  const producer = kafka.producer()
  await producer.connect()
  const consumer = kafka.consumer({ groupId: randomBytes(8).toString('hex') })
  await consumer.connect()
  await consumer.subscribe({ topics: [attempt.topic], fromBeginning: true })
  await consumer.run({ eachMessage: async ({ message }) => { report.received.push(message.value.toString()) } })
  for (let number = 0; !existsSync(stop); number++) {
    const value = `${attempt.name}-${number}`
    await producer.send({ topic: attempt.topic, messages: [{ value }] })
    report.acknowledged.push(value)
    await pause(10)
  }
  const deadline = Date.now() + 60_000
  while (report.received.length < report.acknowledged.length && Date.now() < deadline) await pause(20)
}

load(JSON.parse(readFileSync(0, 'utf8')), process.argv[2])
  .catch(error => { report.errors.push(chain(error)) })
  .then(() => process.stdout.write(JSON.stringify(report) + '\n', () => process.exit(0)))

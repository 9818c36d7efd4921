// Logins over TLS of compat_tests/security/programs.py: reads attempts from standard input, and prints a line for each.
'use strict'
const { readFileSync } = require('node:fs')
const { randomBytes } = require('node:crypto')
const { Kafka, logLevel } = require('kafkajs')

function saslOf ({ mechanism, user, secret }) {
  if (mechanism === 'OAUTHBEARER') return { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: secret }) }
  return { mechanism: mechanism.toLowerCase(), username: user, password: secret }
}

function settingsOf (attempt) {
  return {
    brokers: [attempt.address],
    retry: { initialRetryTime: 50, retries: 2 },
    ssl: { ca: [readFileSync(attempt.trusted, 'utf8')] },
    sasl: saslOf(attempt)
  }
}

async function roundTrip (attempt) {
  const kafka = new Kafka({ ...settingsOf(attempt), logLevel: logLevel.NOTHING })
  const producer = kafka.producer()
  await producer.connect()
  await producer.send({ topic: attempt.topic, messages: [{ value: attempt.name }] })
  await producer.disconnect()
  const consumer = kafka.consumer({ groupId: randomBytes(8).toString('hex') })
  await consumer.connect()
  await consumer.subscribe({ topics: [attempt.topic], fromBeginning: true })
  const value = await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => { if (!payload.restart) reject(payload.error) })
    consumer.run({ eachMessage: async ({ message }) => resolve(message.value.toString()) }).catch(reject)
  })
  await consumer.disconnect()
  return value
}

/** An error and its causes, by their names and messages. */
function chain (error) {
  const errors = []
  for (let each = error; each; each = each.cause) errors.push(`${each.name}: ${each.message}`)
  return errors.join('; ')
}

async function report (attempt) {
  const outcome = await roundTrip(attempt).catch(chain)
  console.log(`${attempt.name}\t${outcome.replaceAll('\n', ' ')}`)
}

module.exports = { chain, settingsOf }

if (require.main === module) Promise.all(JSON.parse(readFileSync(0, 'utf8')).map(report)).then(() => process.exit(0))

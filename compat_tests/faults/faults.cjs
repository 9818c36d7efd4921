// A test in Node with kafkajs: `node faults.cjs ADDRESS CONTROL TOPIC` prints what it saw as JSON.
'use strict'
const { Kafka, logLevel } = require('kafkajs')

const [address, control, topic] = process.argv.slice(2)

async function verb (name, values = {}) {
  const answer = await fetch(`${control}/v1/${name}`, { method: 'POST', body: JSON.stringify(values) })
  const result = await answer.json()
  if (!answer.ok) throw new Error(`${name}: ${result.error}`)
  return result
}

async function main () {
  const kafka = new Kafka({ clientId: topic, brokers: [address], logLevel: logLevel.NOTHING })
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ topics: [{ topic, numPartitions: 1 }], waitForLeaders: true })
  await admin.disconnect()

  const producer = kafka.producer({ idempotent: true })
  await producer.connect()
  await verb('add-fault', { action: 'drop', after: true, api: 'Produce', topic })
  for (const value of ['once', 'end']) {
    await producer.send({ topic, messages: [{ key: 'key', value }] })
  }
  await producer.disconnect()

  const consumer = kafka.consumer({ groupId: topic, heartbeatInterval: 200 })
  await verb('add-fault', { action: 'fail', api: 'Heartbeat', error: 'REBALANCE_IN_PROGRESS', group: topic })
  const joins = []
  consumer.on(consumer.events.GROUP_JOIN, event => joins.push(event.payload.memberId))
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  const values = []
  await consumer.run({ eachMessage: async ({ message }) => { values.push(message.value.toString()) } })
  while (joins.length < 2 || !values.includes('end')) await new Promise(resolve => setTimeout(resolve, 20))
  await consumer.disconnect()
  await verb('check-faults')

  const { count } = await verb('list-requests', { api: 'Produce', client_id: topic })
  console.log(JSON.stringify({ values, produce_count: count }))
}

main().then(() => process.exit(0), error => { console.error(error); process.exit(1) })

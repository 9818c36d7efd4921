// Three faults over HTTP: at FAULTS_ADDRESS and FAULTS_CONTROL, or at a container of FAULTS_IMAGE.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, afterEach, before, beforeEach, test } from 'node:test'
import { KafkaContainer } from '@testcontainers/kafka'
import kafkajs from 'kafkajs'

let { FAULTS_ADDRESS: address, FAULTS_CONTROL: control, FAULTS_IMAGE: image } = process.env
let container, kafka, topic

before(async () => {
  if (address) return
  container = await new KafkaContainer(image).withKraft()
    .withEnvironment({ KWIRE_CONTROL_PORT: '9100' }).withExposedPorts(9100).start()
  address = `${container.getHost()}:${container.getMappedPort(9093)}`
  control = `http://${container.getHost()}:${container.getMappedPort(9100)}`
})

after(() => container?.stop())

beforeEach(async () => {
  topic = `node-${randomUUID()}`
  kafka = new kafkajs.Kafka({ clientId: topic, brokers: [address], logLevel: kafkajs.logLevel.NOTHING })
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ topics: [{ topic, numPartitions: 1 }], waitForLeaders: true })
  await admin.disconnect()
})

afterEach(() => verb('check-faults'))

test('lost acknowledgement', async () => {
  await verb('add-fault', { action: 'drop', after: true, api: 'Produce', topic })
  await produce('once', 'end')
  assert.deepEqual(await read(values => values.length >= 2), ['once', 'end'])
  const { count } = await verb('list-requests', { api: 'Produce', client_id: topic })
  console.log(`OBSERVED lost-acknowledgement ${count}`)
})

test('response cut in the middle', async () => {
  await produce('1', '2', '3')
  await verb('add-fault', { action: 'cut', api: 'Fetch', topic })
  assert.deepEqual(await read(values => values.length >= 3), ['1', '2', '3'])
  console.log('OBSERVED cut-response 3')
})

test('refused heartbeat', async () => {
  await produce('1')
  await verb('add-fault', { action: 'fail', api: 'Heartbeat', error: 'REBALANCE_IN_PROGRESS', group: topic })
  assert.deepEqual(await read(async values => values.length >= 1 && await hasRejoined()), ['1'])
  console.log('OBSERVED refused-heartbeat 1')
})

async function hasRejoined () {
  const { requests } = await verb('list-requests', { client_id: topic })
  const apis = requests.map(request => request.api)
  return apis.includes('Heartbeat') && apis.slice(apis.indexOf('Heartbeat')).includes('SyncGroup')
}

async function produce (...values) {
  const producer = kafka.producer({ idempotent: true })
  await producer.connect()
  for (const value of values) await producer.send({ topic, messages: [{ value }] })
  await producer.disconnect()
}

async function read (isOver) {
  const values = []
  const consumer = kafka.consumer({ groupId: topic, heartbeatInterval: 200, maxWaitTimeInMs: 500 })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({ eachMessage: async ({ message }) => { values.push(message.value.toString()) } })
  const end = Date.now() + 30_000
  while (!await isOver(values)) {
    assert(Date.now() < end, `waited 30 s; read ${values}`)
    await new Promise(resolve => setTimeout(resolve, 20))
  }
  await consumer.disconnect()
  return values
}

async function verb (name, values = {}) {
  const answer = await fetch(`${control}/v1/${name}`, { method: 'POST', body: JSON.stringify(values) })
  const result = await answer.json()
  assert(answer.ok, `${name}: ${result.error}`)
  return result
}

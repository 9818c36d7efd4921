// @platformatic/kafka: TypeScript's newest client, which uses the flexible versions.
import assert from 'node:assert/strict'
import { Admin, Consumer, MessagesStreamModes, Producer, ProduceAcks, stringDeserializers, stringSerializers } from '@platformatic/kafka'
import shared from './scenarios.cjs'

const { COUNT, unique, values, eventually } = shared

const base = address => ({ clientId: 'platformatic', bootstrapBrokers: [address], metadataMaxAge: 100 })

async function withClient (client, work, ...force) {
  try {
    return await work(client)
  } finally {
    await client.close(...force)
  }
}

async function create (address, partitions = 1) {
  const topic = unique('platformatic')
  await withClient(new Admin(base(address)), admin => admin.createTopics({ topics: [topic], partitions, replicas: 1 }))
  return topic
}

async function fill (address, topic, options = {}) {
  const producer = new Producer({ ...base(address), serializers: stringSerializers, ...options })
  const messages = values(COUNT).map((value, n) => ({ topic, key: `key-${n}`, value, headers: { h: '1' } }))
  return await withClient(producer, () => producer.send({ messages, acks: ProduceAcks.ALL }))
}

async function read (address, topic, groupId, count) {
  const consumer = new Consumer({ ...base(address), groupId, deserializers: stringDeserializers, maxWaitTime: 100 })
  return await withClient(consumer, async () => {
    const mode = MessagesStreamModes.COMMITTED
    const stream = await consumer.consume({ topics: [topic], mode, fallbackMode: 'earliest', autocommit: false })
    const found = []
    stream.on('data', message => found.push(message))
    await eventually(() => found.length >= count, `${count} records`)
    await found.at(-1).commit()
    return found
  }, true)
}

async function codecs (address) {
  for (const compression of ['none', 'gzip']) {
    const topic = await create(address)
    await fill(address, topic, { compression })
    const found = await read(address, topic, unique('group'), COUNT)
    assert.deepEqual(found.map(message => message.value), values(COUNT))
    assert.equal(found[3].headers.get('h'), '1')
  }
}

async function idempotent (address) {
  const topic = await create(address)
  const { offsets } = await fill(address, topic, { idempotent: true })
  assert.equal(offsets[0].offset, 0n)
}

async function resume (address) {
  const topic = await create(address)
  const group = unique('group')
  await fill(address, topic)
  await read(address, topic, group, COUNT)
  await fill(address, topic)
  const found = await read(address, topic, group, COUNT)
  assert.equal(found[0].offset, BigInt(COUNT))
}

async function admin (address) {
  const topic = await create(address, 3)
  await withClient(new Admin(base(address)), async admin => {
    await eventually(async () => (await admin.listTopics()).includes(topic), 'listed')
    const metadata = await admin.metadata({ topics: [topic] })
    assert.equal(metadata.topics.get(topic).partitionsCount, 3)
    const dirs = await admin.describeLogDirs({ topics: [{ name: topic, partitions: [0, 1, 2] }] })
    assert.equal(dirs.length, 1)
    await admin.describeClientQuotas({ components: [{ entityType: 'client-id', matchType: 2 }] })
    const group = unique('group')
    await fill(address, topic)
    await read(address, topic, group, 1)
    assert.ok((await admin.listGroups()).has(group))
    const described = await admin.describeGroups({ groups: [group] })
    assert.equal(described.get(group).state, 'EMPTY')
    await admin.deleteGroups({ groups: [group] })
    await admin.deleteTopics({ topics: [topic] })
    await eventually(async () => !(await admin.listTopics()).includes(topic), 'deleted')
  })
}

export default {
  'platformatic/codecs': codecs,
  'platformatic/idempotent': idempotent,
  'platformatic/resume': resume,
  'platformatic/admin': admin
}

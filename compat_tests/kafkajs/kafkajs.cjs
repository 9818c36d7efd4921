// kafkajs 2.2.4: the last release, which uses the non-flexible versions of all APIs.
'use strict'
const assert = require('node:assert/strict')
const {
  AclOperationTypes, AclPermissionTypes, AclResourceTypes, CompressionCodecs, CompressionTypes, ConfigResourceTypes,
  Kafka, ResourcePatternTypes, logLevel
} = require('kafkajs')
const { COUNT, unique, values, pause, eventually } = require('./scenarios.cjs')

const lz4 = require('kafkajs-lz4')
CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')
CompressionCodecs[CompressionTypes.LZ4] = new lz4().codec

const START = 1_600_000_000_000
const connect = address => new Kafka({ brokers: [address], logLevel: logLevel.NOTHING, retry: { initialRetryTime: 50 } })

const messages = () => values(COUNT).map((text, n) => ({
  key: `key-${n}`, value: text, timestamp: String(START + n * 1000), headers: { h: ['1', '2'], empty: '' }
}))

async function withAdmin (address, work) {
  const admin = connect(address).admin()
  await admin.connect()
  try {
    return await work(admin)
  } finally {
    await admin.disconnect()
  }
}

async function create (address, numPartitions = 1) {
  const topic = unique('kafkajs')
  const configEntries = [{ name: 'retention.ms', value: '-1' }]
  await withAdmin(address, admin => admin.createTopics({ topics: [{ topic, numPartitions, configEntries }] }))
  return topic
}

async function fill (address, topic, settings = {}, sending = {}) {
  const producer = connect(address).producer(settings)
  await producer.connect()
  try {
    return await producer.send({ topic, messages: messages(), ...sending })
  } finally {
    await producer.disconnect()
  }
}

function member (address, groupId, settings = {}) {
  return connect(address).consumer({ groupId, heartbeatInterval: 200, maxWaitTimeInMs: 100, metadataMaxAge: 500, ...settings })
}

/** A running member with what it has read. */
async function consume (address, groupId, topic, settings) {
  const consumer = member(address, groupId, settings)
  const found = []
  let partitions = []
  consumer.on(consumer.events.GROUP_JOIN, event => { partitions = event.payload.memberAssignment[topic] ?? [] })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({ eachMessage: async ({ message }) => { found.push(message) } })
  return { consumer, found, owned: () => partitions, stop: () => consumer.disconnect() }
}

const texts = found => found.map(message => message.value.toString()).sort()

async function codecs (address) {
  for (const compression of [CompressionTypes.None, CompressionTypes.GZIP, CompressionTypes.Snappy, CompressionTypes.LZ4]) {
    const topic = await create(address)
    const [sent] = await fill(address, topic, {}, { compression })
    assert.equal(sent.baseOffset, '0')
    const one = await consume(address, unique('group'), topic)
    await eventually(() => one.found.length >= COUNT, `codec ${compression}`)
    assert.deepEqual(one.found.map(message => message.value.toString()), values(COUNT))
    assert.equal(one.found[5].timestamp, String(START + 5000))
    assert.deepEqual(one.found[5].headers.h.map(String), ['1', '2'])
    await one.stop()
  }
}

async function acks (address) {
  for (const level of [0, 1, -1]) {
    const topic = await create(address)
    await fill(address, topic, {}, { acks: level })
    const one = await consume(address, unique('group'), topic)
    await eventually(() => one.found.length >= COUNT, `acks ${level}`)
    await one.stop()
  }
}

async function idempotent (address) {
  const topic = await create(address)
  const producer = connect(address).producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  const sent = await Promise.all(values(50).map(text => producer.send({ topic, messages: [{ value: text }] })))
  const offsets = sent.map(([one]) => Number(one.baseOffset)).sort((a, b) => a - b)
  assert.deepEqual(offsets, values(50).map((_, n) => n))
  await producer.disconnect()
}

async function groups (address) {
  const topic = await create(address, 4)
  const groupId = unique('group')
  const one = await consume(address, groupId, topic)
  await eventually(() => one.owned().length === 4, 'one member')
  const two = await consume(address, groupId, topic)
  await eventually(() => one.owned().length === 2 && two.owned().length === 2, 'two members')
  await fill(address, topic)
  await eventually(() => one.found.length + two.found.length >= COUNT, 'records')
  assert.deepEqual(texts([...one.found, ...two.found]), values(COUNT))
  await withAdmin(address, async admin => {
    const { groups: [group] } = await admin.describeGroups([groupId])
    assert.equal(group.state, 'Stable')
    assert.equal(group.members.length, 2)
  })
  await two.stop()
  await eventually(() => one.owned().length === 4, 'one member again')
  await one.stop()
  await fill(address, topic)
  const three = await consume(address, groupId, topic)
  await eventually(() => three.found.length >= COUNT, 'resumed')
  assert.deepEqual(texts(three.found), values(COUNT))
  await three.stop()
}

async function batches (address) {
  const topic = await create(address)
  await fill(address, topic)
  const groupId = unique('group')
  const consumer = member(address, groupId)
  let sought = false
  const offsets = []
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({
    eachBatchAutoResolve: false,
    autoCommit: false,
    eachBatch: async ({ batch, resolveOffset, heartbeat }) => {
      for (const message of batch.messages) {
        offsets.push(Number(message.offset))
        resolveOffset(message.offset)
      }
      await heartbeat()
    }
  })
  await eventually(() => offsets.length >= COUNT, 'batches')
  await consumer.commitOffsets([{ topic, partition: 0, offset: '42', metadata: 'note' }])
  consumer.seek({ topic, partition: 0, offset: '50' })
  await eventually(() => (sought = offsets.length >= COUNT + 10), 'sought')
  assert.equal(sought && offsets[COUNT], 50)
  consumer.pause([{ topic }])
  await pause(50)
  consumer.resume([{ topic }])
  await consumer.disconnect()
  await withAdmin(address, async admin => {
    const [{ partitions: [committed] }] = await admin.fetchOffsets({ groupId, topics: [topic] })
    assert.equal(committed.offset, '42')
    assert.equal(committed.metadata, 'note')
  })
}

async function adminTopics (address) {
  await withAdmin(address, async admin => {
    const topic = await create(address, 2)
    assert.equal(await admin.createTopics({ topics: [{ topic }] }), false)
    await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
    await eventually(async () => {
      const { topics: [described] } = await admin.fetchTopicMetadata({ topics: [topic] })
      return described.partitions.length === 3
    }, 'partitions')
    assert.ok((await admin.listTopics()).includes(topic))
    const cluster = await admin.describeCluster()
    assert.equal(cluster.brokers.length, 1)
    assert.equal(cluster.controller, cluster.brokers[0].nodeId)
    const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
    await admin.alterConfigs({ resources: [{ ...resource, configEntries: [{ name: 'max.message.bytes', value: '77777' }] }] })
    await eventually(async () => {
      const answer = await admin.describeConfigs({ resources: [{ ...resource, configNames: ['max.message.bytes'] }] })
      return answer.resources[0].configEntries[0].configValue === '77777'
    }, 'config')
    const moves = await admin.listPartitionReassignments({ topics: [{ topic, partitions: [0] }] })
    assert.deepEqual(moves.topics, [])
    await admin.deleteTopics({ topics: [topic] })
    await eventually(async () => !(await admin.listTopics()).includes(topic), 'deleted')
    await assert.rejects(admin.deleteTopics({ topics: ['no-such-topic'] }), /does not host/)
  })
}

async function adminOffsets (address) {
  const topic = await create(address)
  await fill(address, topic)
  await withAdmin(address, async admin => {
    const [offsets] = await admin.fetchTopicOffsets(topic)
    assert.deepEqual([offsets.low, offsets.high], ['0', String(COUNT)])
    for (const [time, wanted] of [[START, '0'], [START + 30_001, '31'], [START * 2, String(COUNT)]]) {
      const [found] = await admin.fetchTopicOffsetsByTimestamp(topic, time)
      assert.equal(found.offset, wanted)
    }
    await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '7' }] })
    const [left] = await admin.fetchTopicOffsets(topic)
    assert.equal(left.low, '7')
  })
}

async function adminGroups (address) {
  const topic = await create(address)
  const groupId = unique('group')
  await fill(address, topic)
  await withAdmin(address, async admin => {
    await admin.setOffsets({ groupId, topic, partitions: [{ partition: 0, offset: '11' }] })
    const committed = async () => {
      const [{ partitions: [found] }] = await admin.fetchOffsets({ groupId, topics: [topic] })
      return found.offset
    }
    assert.equal(await committed(), '11')
    await admin.resetOffsets({ groupId, topic, earliest: true })
    const [{ partitions: [start] }] = await admin.fetchOffsets({ groupId, topics: [topic], resolveOffsets: true })
    assert.equal(start.offset, '0')
    const listed = await admin.listGroups()
    assert.ok(listed.groups.some(group => group.groupId === groupId))
    const [deleted] = await admin.deleteGroups([groupId])
    assert.equal(deleted.errorCode ?? 0, 0)
    assert.equal(await committed(), '-1')
  })
}

async function errors (address) {
  const topic = await create(address)
  const producer = connect(address).producer()
  await producer.connect()
  const large = producer.send({ topic, messages: [{ value: Buffer.alloc(2_000_000) }] })
  await assert.rejects(large, /too large|larger than the max/i)
  const [sent] = await producer.send({ topic, messages: [{ key: null, value: null }] })
  assert.equal(sent.baseOffset, '0')
  await producer.disconnect()
}

/** What is aborted is never read, what is committed is, with the group's offset. */
async function transaction (address) {
  const topic = await create(address)
  const groupId = unique('group')
  const producer = connect(address).producer({ transactionalId: unique('transaction'), idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  const undone = await producer.transaction()
  await undone.send({ topic, messages: [{ value: 'undone' }] })
  await undone.abort()
  const done = await producer.transaction()
  await done.send({ topic, messages: messages() })
  await done.sendOffsets({ consumerGroupId: groupId, topics: [{ topic, partitions: [{ partition: 0, offset: '9' }] }] })
  await done.commit()
  await producer.disconnect()
  const one = await consume(address, unique('group'), topic)
  await eventually(() => one.found.length >= COUNT, 'committed records')
  assert.deepEqual(one.found.map(message => message.value.toString()), values(COUNT))
  await one.stop()
  await withAdmin(address, admin => eventually(async () => {
    const [{ partitions: [committed] }] = await admin.fetchOffsets({ groupId, topics: [topic] })
    return committed.offset === '9'
  }, 'committed offset'))
}

async function acls (address) {
  const resourceName = unique('acls')
  const pattern = { resourceType: AclResourceTypes.TOPIC, resourceName, resourcePatternType: ResourcePatternTypes.LITERAL }
  const acl = { ...pattern, principal: 'User:alice', host: '*', operation: AclOperationTypes.READ, permissionType: AclPermissionTypes.ALLOW }
  await withAdmin(address, async admin => {
    assert.equal(await admin.createAcls({ acl: [acl] }), true)
    const described = async () => (await admin.describeAcls(acl)).resources
    await eventually(async () => (await described()).length === 1, 'the new ACL')
    const [{ acls: [shown] }] = await described()
    assert.equal(shown.principal, 'User:alice')
    const { filterResponses: [deleted] } = await admin.deleteAcls({ filters: [acl] })
    assert.equal(deleted.matchingAcls.length, 1)
    await eventually(async () => (await described()).length === 0, 'no ACL after the deletion')
  })
}

module.exports = {
  'kafkajs/codecs': codecs,
  'kafkajs/acks': acks,
  'kafkajs/idempotent': idempotent,
  'kafkajs/groups': groups,
  'kafkajs/batches': batches,
  'kafkajs/admin-topics': adminTopics,
  'kafkajs/admin-offsets': adminOffsets,
  'kafkajs/admin-groups': adminGroups,
  'kafkajs/errors': errors,
  'kafkajs/transaction': transaction,
  'kafkajs/acls': acls
}

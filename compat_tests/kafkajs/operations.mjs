// Lists the operations of the libraries' clients: "library/Client.method", one a line.
import { Admin, Consumer, Producer } from '@platformatic/kafka'
import kafkajs from 'kafkajs'

const HELPERS = new Set(['constructor', 'connect', 'disconnect', 'on', 'logger', 'events', 'close'])

const methods = client => Object.keys(client).filter(name => typeof client[name] === 'function')
const own = type => Object.getOwnPropertyNames(type.prototype).filter(
  name => typeof Object.getOwnPropertyDescriptor(type.prototype, name).value === 'function'
)

const kafka = new kafkajs.Kafka({ brokers: ['127.0.0.1:9092'], logLevel: kafkajs.logLevel.NOTHING })
const clients = {
  'kafkajs/admin': methods(kafka.admin()),
  'kafkajs/producer': methods(kafka.producer()),
  'kafkajs/consumer': methods(kafka.consumer({ groupId: 'unused' })),
  'platformatic/Admin': own(Admin),
  'platformatic/Producer': own(Producer),
  'platformatic/Consumer': own(Consumer)
}
for (const [client, names] of Object.entries(clients)) {
  for (const name of names.filter(name => !HELPERS.has(name) && !/^\W|^_/.test(name))) console.log(`${client}.${name}`)
}
process.exit(0)

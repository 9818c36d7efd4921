'use strict'
const { main } = require('./scenarios.cjs')

import('./platformatic.mjs').then(platformatic => main({ ...require('./kafkajs.cjs'), ...platformatic.default }))

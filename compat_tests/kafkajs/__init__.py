"""Users' programs in JavaScript: kafkajs and platformatic's client."""

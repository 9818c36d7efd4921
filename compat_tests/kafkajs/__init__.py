"""Programs in JavaScript as users write them: kafkajs and platformatic's client."""

"""The two halves of a node: what every one has, and what only brokers have."""

"""The tables of settings: broker, topic, group, client metrics; and the file they come from."""

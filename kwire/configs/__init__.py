"""The tables of settings for broker, topic, group and client metrics, and the settings file."""

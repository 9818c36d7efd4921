"""Metrics that clients push (KIP-714): subscriptions, client instances, received values."""

"""Clients that push their metrics (KIP-714), and the tool for subscriptions."""

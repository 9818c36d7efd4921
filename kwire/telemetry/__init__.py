"""Metrics that clients push (KIP-714): who pushes what and when, and what arrived."""

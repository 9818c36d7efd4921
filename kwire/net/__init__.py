"""Connections: bytes in, frames to the dispatcher that answers them, bytes out."""

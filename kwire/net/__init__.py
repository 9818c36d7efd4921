"""Connections: bytes in, frames to the session that answers them, bytes out."""

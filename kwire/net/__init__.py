"""Connections: bytes in, frames to whoever answers them, bytes out."""

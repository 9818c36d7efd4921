"""Framing: bytes of a connection in, whole frames out.  Pure: no socket, no clock."""


class Disconnect(Exception):
    """The connection cannot go on; the text says why, for the one log line about it."""

"""The client in whose name tests send Envelopes."""

from __future__ import annotations

from kwire.codec.compile import encode
from kwire.codec.messages.principal import DefaultPrincipal

PRINCIPAL = b"\0\0" + encode(
    DefaultPrincipal(type="User", name="alice", token_authenticated=False), 0
)
HOST = bytes((10, 1, 2, 3))

"""The health check of the container image: sends ApiVersions to the node.

It runs inside the container as a separate process, without a shell. A node refuses connections
until it is ready; one that hangs accepts them, so the check also waits for an answer.
"""

import socket
from collections.abc import Sequence
from typing import Final

from kwire.configs.listeners import ListenerEndpoint

TIMEOUT_S: Final = 3.0
_API_VERSIONS: Final = bytes.fromhex("0000000a 0012 0000 00000001 ffff")
"""The smallest request: ApiVersions version 0 with correlation id 1 and no client id."""
_HEAD: Final = 10
"""The bytes of the response's length, correlation id and error code."""
_EVERYWHERE: Final = {"": "localhost", "0.0.0.0": "127.0.0.1", "::": "::1"}


def is_ready(endpoints: Sequence[ListenerEndpoint]) -> bool:
    """Return whether the node answers at its first listener."""
    first = endpoints[0]
    address = (_EVERYWHERE.get(first.host, first.host), first.port)
    try:
        with socket.create_connection(address, TIMEOUT_S) as connection:
            connection.sendall(_API_VERSIONS)
            head = connection.recv(_HEAD, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(head) == _HEAD and head[8:] == b"\0\0"

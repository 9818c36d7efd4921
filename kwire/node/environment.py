"""The environment of a node: everything through which a node interacts with the outside.

:func:`kwire.node.server.make_node` builds every node from a configuration and an environment:
``kwire serve`` uses this computer, a test perhaps another clock, and a simulation disks and
connections in memory. No other part of a node opens a file, socket or connection, starts a process,
or gets the time or randomness, on its own. Calls that may block run in trio's threads.
"""

import socket
from collections.abc import Callable
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from kwire.clock import NodeClock, SystemClock
from kwire.log.descriptors import raise_descriptor_limit
from kwire.log.disk import Disks, RealDisks
from kwire.metrics import Metrics
from kwire.net.connection_pool import Network
from kwire.net.limits import Limits, last_descriptor
from kwire.net.listener import Address, ForConnection
from kwire.net.server import NetServer
from kwire.raftmeta.metadata.quota_lookup import Quotas
from kwire.raftmeta.quorum import StepObserver

if TYPE_CHECKING:
    from kwire.log.directories.cleaning_runner import CleaningRunner
    from kwire.log.directories.segment_checker import SegmentChecker
    from kwire.net.tls.server_tls import ServerTls


class Listeners(Protocol):
    """The listening sockets of one node, and their connections."""

    def bind(
        self,
        name: str,
        host: str,
        port: int,
        *,
        protected: bool = False,
        tls: "ServerTls | None" = None,
    ) -> Address:
        """Claim an address; connections are refused until :meth:`accept`. Raises OSError.

        A ``protected`` listener still accepts when the connections of other listeners fill the
        node. With ``tls``, its connections are encrypted.
        """

    def address(self, name: str) -> Address:
        """Return the address of a bound listener."""

    def accept(self, name: str, for_connection: ForConnection) -> None:
        """Start to serve a bound listener, while :meth:`run` runs; raise OSError if it is taken."""

    def relimit(self, limits: Limits) -> None:
        """Change the limits on connections and on their rate; open connections stay open."""

    def limit_addresses(self, quotas: Quotas) -> None:
        """Limit the rates at which addresses open connections, according to these quotas."""

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled, then release every address."""

    def stop_accepting(self) -> None:
        """Refuse new connections on all listeners; open connections stay open."""

    def close(self) -> None:
        """Release every address."""


OpenListeners = Callable[[Limits, Metrics], Listeners]
"""Returns listeners without addresses, which obey the limits and count in the metrics."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Environment:
    """The outside of one node."""

    disks: Disks
    """The log directories."""
    network: Network
    """The connections to other nodes."""
    open_listeners: OpenListeners
    host_name: str
    """The name of this host, which is advertised for a listener on all interfaces."""
    clock: NodeClock
    random: Random
    """The source of every id that the node creates: of topics, members, sessions, directories."""
    make_cleaner: "Callable[[], CleaningRunner] | None" = None
    """Creates the processes that compact logs; None for a node that compacts none."""
    make_checker: "Callable[[], SegmentChecker] | None" = None
    """Creates the processes that look for damage in logs; None for a node that does not."""
    observer: StepObserver | None = None
    """Sees the steps of the node's quorum; None outside simulations."""


def this_computer(
    *,
    clock: NodeClock | None = None,
    random: Random | None = None,
    collect: Callable[[], object] | None = None,
) -> Environment:
    """Return the environment of a node on this computer.

    By default, the node uses the system's clock and source of randomness. ``collect``, if given, is
    called after every few new connections; it belongs to a process whose garbage collector is tuned
    for the node.
    """
    clock, random = clock or SystemClock(), random or SystemRandom()

    def open_listeners(limits: Limits, metrics: Metrics) -> NetServer:
        net = NetServer(limits, metrics, clock.now)
        if collect is not None:
            net.acceptor.collect = collect
        net.acceptor.last_descriptor = last_descriptor(raise_descriptor_limit())
        return net

    return Environment(
        disks=RealDisks(),
        network=Network(clock, source_of_delays(random)),
        open_listeners=open_listeners,
        host_name=socket.gethostname(),
        clock=clock,
        random=random,
        make_cleaner=_make_cleaner,
        make_checker=_make_checker,
    )


def _make_cleaner() -> "CleaningRunner":
    """Return the runner of compaction passes; it is loaded with the first compacted log."""
    from kwire.log.directories.cleaning_runner import ProcessRunner

    return ProcessRunner()


def _make_checker() -> "SegmentChecker":
    """Return the worker of a scrub; it is loaded only if the scrub is on."""
    from kwire.log.directories.segment_checker import ProcessChecker

    return ProcessChecker()


def source_of_delays(random: Random) -> Random:
    """Return a source of randomness for delays.

    It is separate from ``random``, because the number of delays depends on the time, and the ids
    drawn from ``random`` must not.
    """
    return Random(random.randbytes(16))

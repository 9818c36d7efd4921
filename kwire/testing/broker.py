"""A broker in this process, and a cluster, for programs with or without an event loop.

Rules: the nodes run in a thread with its own trio loop, all nodes of a cluster in one. Every method
blocks until it is done. So a program that runs asyncio or trio must use a thread to call a method
that waits for the program's own clients: ``await asyncio.to_thread(broker.wait_lag, "group")``.
"""

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from kwire.net.listener import Address
from kwire.testing import operations, waits
from kwire.testing.clock import MockTime
from kwire.testing.errors import BrokerError
from kwire.testing.faults import Faults
from kwire.testing.loop_thread import LoopThread
from kwire.testing.nodes import LocalCluster, open_nodes
from kwire.testing.releases import parse_release
from kwire.testing.request_log import RequestLog
from kwire.testing.waits import TIMEOUT_S


class BrokerClock:
    """The time of a test broker, which passes normally; a test can move it forward."""

    def __init__(
        self, loop: LoopThread[LocalCluster], nodes: Callable[[], LocalCluster], time: MockTime
    ) -> None:
        self._loop = loop
        self._nodes = nodes
        self._time = time

    def advance(self, seconds: float) -> None:
        """Move the broker's time forward at once, so that everything due by then happens now.

        This includes the expiry of sessions and transactions, retention, compaction and delayed
        requests. The time of your clients does not move: a consumer whose session has expired
        rejoins.
        """
        self._loop.call(self._nodes().advance, seconds)

    def now_ms(self) -> int:
        """Return the broker's wall clock."""
        return self._time.now_ms()


class _Threaded:
    """The nodes of one test broker, in a thread; a context manager that may be entered once."""

    def __init__(
        self, open_nodes: Callable[..., AbstractAsyncContextManager[LocalCluster]]
    ) -> None:
        time = MockTime()
        self._loop = LoopThread(partial(open_nodes, clock=time), "kwire broker", time.of_trio)
        self.clock = BrokerClock(self._loop, lambda: self._nodes, time)
        """The broker's time: ``broker.clock.advance(3600)``."""
        self._opened: LocalCluster | None = None

    def __enter__(self) -> Self:
        if self._opened is not None:
            raise BrokerError("a broker is a context manager for one use; create another one")
        self._opened = self._loop.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.stop()
        if self._loop.is_forked:
            return
        if self._loop.failure is not None and error is None:
            raise BrokerError(f"the broker has failed: {self._loop.failure!r}") from (
                self._loop.failure
            )
        if error is None:
            self.faults.check()

    @property
    def _nodes(self) -> LocalCluster:
        if self._opened is None:
            raise BrokerError("the broker is not running yet: use it in a with statement")
        return self._opened

    @property
    def bootstrap_servers(self) -> str:
        """The addresses for clients, as in ``bootstrap.servers``."""
        return self._nodes.bootstrap_servers

    def client_settings(self, library: str = "confluent-kafka") -> dict[str, str]:
        """Return a client's settings; for a protected broker, they log in as the admin.

        ``library`` is confluent-kafka or kafka-python.
        """
        return self._nodes.client_settings(library)

    @property
    def faults(self) -> Faults:
        """The faults that the test arranges: ``broker.faults.fail("Produce", "...")``.

        A fault that has not happened by the end of the context raises BrokerError.
        """
        return self._nodes.faults

    @property
    def requests(self) -> RequestLog:
        """The requests of clients: ``broker.requests.count("Produce")``."""
        return self._nodes.requests

    @property
    def log_lines(self) -> list[str]:
        """The newest 10,000 lines of the broker's log."""
        return self._nodes.log_lines

    @property
    def log_line_count(self) -> int:
        """The number of lines that the broker has logged in total."""
        return self._nodes.log.count

    def end_outages(self) -> None:
        """Resume paused nodes and free full disks, as the fixtures do at the end of each test."""
        nodes = self._nodes.nodes.values()
        if any(node.pause.is_on for node in nodes):
            self._loop.call(self._nodes.resume)
        if any(node.disk_space.is_full for node in nodes):
            self._loop.call(self._nodes.free_disk)

    # Topics ---------------------------------------------------------------------------------
    def create_topic(
        self, name: str, partitions: int = 1, *, replication_factor: int = -1, **settings: object
    ) -> None:
        """Create a topic and wait until every node serves it.

        ``settings`` are the topic's, with underscores: ``cleanup_policy="compact"``. Raises
        BrokerError, for example if the topic exists.
        """
        self._loop.call(self._nodes.add_topic, name, partitions, replication_factor, settings)

    def delete_topics(self, *names: str) -> None:
        """Delete topics; topics that do not exist are skipped."""
        self._loop.call(self._nodes.delete_topics, *names)

    @contextmanager
    def topic(
        self, partitions: int = 1, *, replication_factor: int = -1, **settings: object
    ) -> Iterator[str]:
        """Create a topic with a unique name for the context, and delete it at the end."""
        name = f"topic-{uuid.uuid4().hex[:12]}"
        self._loop.call(self._nodes.add_topic, name, partitions, replication_factor, settings)
        try:
            yield name
        finally:
            self.delete_topics(name)

    # Waits ----------------------------------------------------------------------------------
    def wait_topic(
        self, name: str, partitions: int | None = None, *, timeout: float = TIMEOUT_S
    ) -> None:
        """Wait until every node has the topic, with leaders; ``partitions`` None: any number."""
        self._loop.call(waits.wait_topic, self._nodes, name, partitions, timeout)

    def wait_leader(
        self,
        topic: str,
        partition: int = 0,
        *,
        node: int | None = None,
        timeout: float = TIMEOUT_S,
    ) -> int:
        """Wait until a partition has a leader, ``node`` if given, and return the leader's id."""
        return self._loop.call(waits.wait_leader, self._nodes, topic, partition, node, timeout)

    def wait_in_sync(
        self,
        topic: str,
        partition: int = 0,
        *,
        count: int | None = None,
        timeout: float = TIMEOUT_S,
    ) -> None:
        """Wait until exactly ``count`` replicas of a partition are in sync, by default all."""
        self._loop.call(waits.wait_in_sync, self._nodes, topic, partition, count, timeout)

    def wait_group(self, group: str, members: int = 1, *, timeout: float = TIMEOUT_S) -> None:
        """Wait until a group has exactly ``members`` members, each with an assignment; 0: none."""
        self._loop.call(waits.wait_group, self._nodes, group, members, timeout)

    def wait_lag(
        self, group: str, topic: str | None = None, *, lag: int = 0, timeout: float = TIMEOUT_S
    ) -> None:
        """Wait until a group has committed all but at most ``lag`` offsets of each partition.

        Without ``topic``, these are the partitions for which the group has committed an offset. The
        marker that ends a transaction counts as an offset, which some clients do not commit.
        """
        self._loop.call(waits.wait_lag, self._nodes, group, topic, lag, timeout)

    def wait_transaction_end(self, transactional_id: str, *, timeout: float = TIMEOUT_S) -> str:
        """Wait until a producer's transaction has ended; return how, such as CompleteCommit."""
        return self._loop.call(waits.wait_transaction_end, self._nodes, transactional_id, timeout)

    # Changes --------------------------------------------------------------------------------
    def rebalance(self, group: str) -> None:
        """Begin a rebalance of a group with the classic protocol, in which all members rejoin."""
        self._loop.call(operations.rebalance, self._nodes, group)

    def fence_producer(self, transactional_id: str) -> None:
        """Fence the producer of a transactional id, as a second producer with this id would."""
        self._loop.call(operations.fence_producer, self._nodes, transactional_id)

    def reset(self) -> None:
        """Delete all topics, groups and transactions, and undo changes of settings at run time.

        Faults and the record of requests are cleared too. Clients stay connected.
        """
        self._loop.call(self._nodes.reset)

    def save_snapshot(self, name: str) -> None:
        """Save the topics, records, groups and settings under a name, replacing an earlier copy.

        All nodes restart, so clients have to reconnect.
        """
        self._loop.call(self._nodes.save_snapshot, name)

    def restore_snapshot(self, name: str) -> None:
        """Restore what :meth:`save_snapshot` saved; clear the faults and the record of requests.

        All nodes restart, including stopped ones. The clock keeps its time. Use new clients: old
        clients have seen records that no longer exist.
        """
        self._loop.call(self._nodes.restore_snapshot, name)


class Broker(_Threaded):
    """One broker: ``with Broker(num_partitions=4) as broker: ...``.

    The keyword arguments are Kafka's settings, with underscores for dots. ``data`` is the directory
    of the data, which is kept; by default, the data are in memory and removed at the end. ``port``
    0 means any free port. A ``secure`` broker encrypts connections, requires authentication and
    enforces ACLs; its clients need :meth:`client_settings`. With ``max_versions="3.7"``, clients
    see the APIs and versions of that release. Raises BrokerError with the reason if the broker
    cannot start.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        data: Path | str | None = None,
        secure: bool = False,
        max_versions: str | None = None,
        **settings: object,
    ) -> None:
        release = None if max_versions is None else parse_release(max_versions)
        super().__init__(
            partial(open_nodes, 1, settings, port=port, data=data, secure=secure, release=release)
        )

    @property
    def address(self) -> Address:
        """The host and the port for clients."""
        return self._nodes.address

    def stop(self) -> None:
        """Shut the broker down cleanly, until :meth:`start`; data and port are kept."""
        self._loop.call(self._nodes.stop)

    def kill(self) -> None:
        """End the broker as ``kill -9`` does, until :meth:`start`; data and port are kept."""
        self._loop.call(self._nodes.kill)

    def start(self) -> None:
        """Restart the broker after :meth:`stop` or :meth:`kill`."""
        self._loop.call(self._nodes.start)

    def restart(self) -> None:
        """Stop the broker and start it again, with the same data and port."""
        self._loop.call(self._nodes.restart)

    def pause(self) -> None:
        """Accept requests of clients, but do not answer them until :meth:`resume`."""
        self._loop.call(self._nodes.pause)

    def resume(self) -> None:
        """Answer the clients' requests that have waited since :meth:`pause`, and later ones."""
        self._loop.call(self._nodes.resume)

    def fill_disk(self) -> None:
        """Reject records with KAFKA_STORAGE_ERROR, as with a full disk, until :meth:`free_disk`.

        Reads go on. Commits of groups and transactions are records too. A restart changes nothing.
        """
        self._loop.call(self._nodes.fill_disk)

    def free_disk(self) -> None:
        """Leave space for records again, after :meth:`fill_disk`."""
        self._loop.call(self._nodes.free_disk)


class Cluster(_Threaded):
    """Several nodes, each a broker and a controller: ``with Cluster(3) as cluster: ...``.

    Nodes have the ids 1, 2, 3; topics get three replicas, of which two must be in sync. The keyword
    arguments are Kafka's settings, ``secure`` and ``max_versions``, as for :class:`Broker`.
    """

    def __init__(
        self,
        count: int = 3,
        *,
        secure: bool = False,
        max_versions: str | None = None,
        **settings: object,
    ) -> None:
        release = None if max_versions is None else parse_release(max_versions)
        super().__init__(partial(open_nodes, count, settings, secure=secure, release=release))

    @property
    def addresses(self) -> list[Address]:
        """The hosts and ports for clients, in the order of the nodes."""
        return self._nodes.addresses

    def stop(self, node: int) -> None:
        """Shut a node down cleanly, until :meth:`start`; its data and port are kept."""
        self._loop.call(self._nodes.stop, node)

    def kill(self, node: int) -> None:
        """End a node as ``kill -9`` does, until :meth:`start`; its data and port are kept."""
        self._loop.call(self._nodes.kill, node)

    def start(self, node: int) -> None:
        """Restart a node after :meth:`stop` or :meth:`kill`."""
        self._loop.call(self._nodes.start, node)

    def restart(self, node: int) -> None:
        """Stop a node and start it again, with the same data and port."""
        self._loop.call(self._nodes.restart, node)

    def pause(self, node: int) -> None:
        """Have a node accept requests of clients, but not answer them until :meth:`resume`.

        Nodes still answer each other, so a paused leader remains leader.
        """
        self._loop.call(self._nodes.pause, node)

    def resume(self, node: int) -> None:
        """Answer the clients' requests that have waited since :meth:`pause`, and later ones."""
        self._loop.call(self._nodes.resume, node)

    def fill_disk(self, node: int) -> None:
        """Have a node reject records with KAFKA_STORAGE_ERROR, as with a full disk.

        Reads go on. Commits of groups and transactions are records too. The node keeps its
        leaderships, and as a follower falls out of sync. A restart changes nothing, but
        :meth:`free_disk` does.
        """
        self._loop.call(self._nodes.fill_disk, node)

    def free_disk(self, node: int) -> None:
        """Leave space for records again, after :meth:`fill_disk`."""
        self._loop.call(self._nodes.free_disk, node)

    def move_leader(self, topic: str, node: int, partition: int = 0) -> None:
        """Make an in-sync replica the leader of a partition."""
        self._loop.call(operations.move_leader, self._nodes, topic, partition, node)

    def move_coordinator(self, node: int, *, group: str = "", transactional_id: str = "") -> None:
        """Make a node the coordinator of a group or a transactional id, which must be in use."""
        move = partial(operations.move_coordinator, group=group, transactional_id=transactional_id)
        self._loop.call(move, self._nodes, node)

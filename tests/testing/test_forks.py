"""A program under test forks workers, which must not keep what belongs to the broker."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kwire.testing import Broker, Cluster
from kwire.testing.wire import WireClient
from tests.support.testing.clients import produce

pytestmark = [
    # trio's threads run; what these tests do after a fork takes no lock of another thread.
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes can be forked"),
]


@contextmanager
def worker() -> Iterator[None]:
    """Fork a process that waits until the end of the context."""
    process = os.fork()
    if process == 0:
        signal.pause()
    try:
        yield
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def run_forked(function: Callable[[], None]) -> str:
    """Return the error that the function raises in a forked process, or nothing."""
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            function()
        except BaseException as error:  # noqa: BLE001  The other process compares it.
            os.write(write, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(write)
    try:
        os.waitpid(process, 0)
        return os.read(read, 10_000).decode()
    finally:
        os.close(read)


def test_stopped_broker_disconnects_clients_although_a_worker_was_forked() -> None:
    with Broker() as broker, socket.create_connection(broker.address, timeout=10) as client:
        broker.create_topic("orders")  # The client has been accepted.
        with worker():
            broker.stop()
            assert client.recv(1) == b""
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(broker.address)
            broker.start()
            with WireClient(*broker.address) as later:
                assert produce(later, "orders") == 0


def test_nodes_of_a_cluster_restart_although_a_worker_was_forked() -> None:
    with Cluster(3) as cluster:
        cluster.create_topic("orders")
        with worker():
            leader = cluster.wait_leader("orders")
            cluster.kill(leader)
            assert cluster.wait_leader("orders") != leader
            cluster.start(leader)
            cluster.wait_in_sync("orders")


def test_forked_process_can_be_a_client_only() -> None:
    with Broker() as broker:

        def connect() -> None:
            with WireClient(*broker.address) as client:
                assert produce(client, "orders") == 0

        broker.create_topic("orders")
        assert run_forked(connect) == ""
        for call in (broker.reset, broker.stop, lambda: broker.clock.advance(1)):
            assert run_forked(call) == (
                "BrokerError: the broker runs in the process that forked this one: here only "
                "connect clients to its bootstrap_servers"
            )


def test_forked_process_may_leave_the_context() -> None:
    with Broker() as broker:
        broker.faults.drop("Produce")

        def leave() -> None:
            broker.__exit__(None, None, None)

        assert run_forked(leave) == ""
        broker.create_topic("orders")
        broker.faults.clear()


def test_sockets_of_other_servers_stay_open_in_forked_processes() -> None:
    with Broker() as broker, socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with server.accept()[0] as accepted:
                accepted.sendall(b"hello")

        with socket.create_connection(server.getsockname()) as client:
            assert run_forked(accept) == ""
            assert client.recv(5) == b"hello"
        broker.create_topic("orders")

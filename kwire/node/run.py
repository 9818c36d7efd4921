"""Runs one node in this process until a signal ends it.

The first SIGTERM or SIGINT shuts the node down cleanly; a second one kills it. SIGHUP, which a
terminal sends when it is closed, shuts the node down cleanly too. A disk error in
files that the node needs (its metadata log) ends it with one clear line. The functions that need
the parts of a node import them, so that the signal handlers are installed before anything is
imported or created.
"""

import gc
import logging
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Final, Protocol, Self

if TYPE_CHECKING:
    import trio

    from kwire.configs.broker import BrokerConfig
    from kwire.node.server import Server
    from kwire.node.service_manager import ServiceManager

    class Beside(Protocol):
        """A task that runs beside a node, and reports when the node may be announced."""

        async def __call__(
            self, server: Server, *, task_status: trio.TaskStatus[None] = ...
        ) -> None: ...


logger = logging.getLogger(__name__)


class StopSignals:
    """The handlers of SIGTERM, SIGINT and SIGHUP, in place from before a node exists to its end.

    The first signal is only recorded, so nothing is left half done; the caller that runs the node
    shuts it down cleanly. A second signal ends the process at once, except SIGHUP: a terminal that
    is closed may send it twice. SIGHUP stays ignored if it was, as under nohup. For the main thread
    only.
    """

    HANG_UP: Final[int | None] = getattr(signal, "SIGHUP", None)
    NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.received: int | None = None
        """The first signal."""
        self._second: int | None = None
        """A second signal that arrived before ``end_at_once_by`` set what to clean up."""
        self._clean_up: Callable[[], None] | None = None
        self._on_first: Callable[[], object] | None = None
        self._former: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> Self:
        numbers: list[int] = list(self.NUMBERS)
        if self.HANG_UP is not None and signal.getsignal(self.HANG_UP) != signal.SIG_IGN:
            numbers.append(self.HANG_UP)
        self._former = {number: signal.signal(number, self._handle) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def notify(self, on_first: Callable[[], object] | None) -> None:
        """Call ``on_first`` on the first signal, or now if one has arrived; None unsets it."""
        self._on_first = on_first
        if on_first is not None and self.received is not None:
            on_first()

    async def wait(self) -> None:
        """Wait for the first signal, in place of :meth:`notify`."""
        import trio

        came = trio.Event()
        token = trio.lowlevel.current_trio_token()
        self.notify(lambda: token.run_sync_soon(came.set))
        try:
            await came.wait()
        finally:
            self.notify(None)

    def end_at_once_by(self, clean_up: Callable[[], None]) -> None:
        """Let a second signal call ``clean_up`` and end the process, now if it has already arrived.

        No other cleanup runs in that case. Before this call, a second signal has no effect yet.
        """
        self._clean_up = clean_up
        if self._second is not None:
            self._end(self._second)

    def end_at_once_after(self, act: Callable[[], None]) -> None:
        """Let a second signal call ``act``, then clean up and end the process."""
        clean_up = self._clean_up

        def end() -> None:
            act()
            if clean_up is not None:
                clean_up()

        self.end_at_once_by(end)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = number
            if self._on_first is not None:
                self._on_first()
        elif number == self.HANG_UP:
            return
        elif self._clean_up is None:
            self._second = number
        else:
            self._end(number)

    def _end(self, number: int) -> None:
        if self._clean_up is not None:
            self._clean_up()
        os._exit(128 + number)


def run_until_signal(
    config: "BrokerConfig",
    signals: StopSignals,
    *,
    cluster_id: str | None,
    metrics_port: int | None,
    metrics_host: str | None = None,
    ready: Callable[[str, int], None],
    write: Callable[[str], None] | None = None,
    beside: "Beside | None" = None,
) -> None:
    """Run one node in this process until the first signal; ``signals`` must be entered.

    With ``write``, a supervisor is connected to standard input, and ``write`` sends it the answers.
    ``beside`` runs once the node can answer requests; the node is announced when it has started.
    """
    import trio

    from kwire.storage_format.directories import CannotOpenError

    if signals.received is not None:
        logger.info("signal number=%d", signals.received)
        return
    try:
        trio.run(
            _until_signal,
            config,
            signals,
            cluster_id,
            metrics_port,
            metrics_host,
            ready,
            write,
            beside,
        )
    except BaseExceptionGroup as group:
        errors = list(leaves(group))
        if isinstance(errors[0], CannotOpenError):
            raise errors[0] from group
        if _is_refused(errors[0]):
            logger.debug("the controller does not accept this broker", exc_info=group)
            raise CannotOpenError(f"cannot continue: {_reason(errors[0])}") from group
        if not all(map(_is_of_the_machine, errors)):
            raise
        logger.debug("the disk failed, or too many files are open", exc_info=group)
        raise CannotOpenError(f"cannot continue: {_reason(errors[0])}") from group


def _reason(error: BaseException) -> str:
    from kwire.log.disk_health import lacks_descriptors
    from kwire.storage_format.directories import refusal, with_remedy

    if isinstance(error, OSError) and error.filename:
        if lacks_descriptors(error):
            return with_remedy(f"cannot open {error.filename}: {error.strerror}", error)
        return refusal(str(error.filename), error)
    if isinstance(error, OSError):  # A failed write names no file.
        return with_remedy(str(error), error)
    if isinstance(error.__cause__, OSError):
        return with_remedy(str(error), error.__cause__)
    return str(error)


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Yield the errors in a group, including those in nested groups."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error


def _is_refused(error: BaseException) -> bool:
    """Return whether no controller accepts this broker, or another broker uses its id."""
    from kwire.errors import (
        BrokerIdNotRegistered,
        DuplicateBrokerRegistration,
        InconsistentClusterId,
        InvalidRegistration,
        UnsupportedVersion,
    )

    refusals = (
        BrokerIdNotRegistered,
        DuplicateBrokerRegistration,
        InconsistentClusterId,
        InvalidRegistration,
        UnsupportedVersion,
    )
    return isinstance(error, refusals)


def _is_of_the_machine(error: BaseException) -> bool:
    from kwire.errors import KafkaStorageError
    from kwire.log.disk_health import is_of_the_machine

    return isinstance(error, KafkaStorageError) or (
        isinstance(error, OSError) and is_of_the_machine(error)
    )


async def _until_signal(
    config: "BrokerConfig",
    signals: StopSignals,
    cluster_id: str | None,
    metrics_port: int | None,
    metrics_host: str | None,
    ready: Callable[[str, int], None],
    write: Callable[[str], None] | None,
    beside: "Beside | None",
) -> None:
    import trio

    from kwire.node.environment import this_computer
    from kwire.node.garbage import Collector, collect_new
    from kwire.node.server import make_node

    server = make_node(config, this_computer(collect=collect_new), cluster_id)
    manager = _service_manager()

    def stop() -> None:
        logger.info("signal number=%d", signals.received)
        if manager is not None:
            manager.tell(STOPPING="1")
        server.stop()

    token = trio.lowlevel.current_trio_token()
    signals.notify(lambda: token.run_sync_soon(stop))
    on_collection = Collector(token.run_sync_soon).on_collection
    gc.callbacks.append(on_collection)
    try:
        async with trio.open_nursery() as nursery:
            if metrics_port is not None:
                await show(nursery, server, metrics_host, metrics_port)
            nursery.start_soon(_announce, server, ready, beside, nursery)
            if manager is not None:
                nursery.start_soon(manager.follow, server)
            if write is not None:
                from kwire.node.supervisor_link import follow_supervisor

                nursery.start_soon(follow_supervisor, server, write)
            await server.run()
            nursery.cancel_scope.cancel()
    finally:
        gc.callbacks.remove(on_collection)
        signals.notify(None)


def _service_manager() -> "ServiceManager | None":
    """Return the service manager that started this process, if it wants reports: systemd."""
    if "NOTIFY_SOCKET" not in os.environ:
        return None
    from kwire.node.service_manager import connect_service_manager

    return connect_service_manager()


async def show(nursery: "trio.Nursery", server: "Server", host: str | None, port: int) -> int:
    """Serve the metrics pages, by default only on the clients' host; return the port."""
    from kwire.net.http_pages import serve_pages
    from kwire.node.pages import pages
    from kwire.storage_format.directories import CannotOpenError

    config = server.config
    if host is None:
        host = (config.broker_endpoints or config.controller_endpoints)[0].host
    try:
        bound: int = await nursery.start(serve_pages, host, port, pages(server))
    except OSError as error:
        text = (
            f"cannot show metrics on {host}:{port}: {error.strerror or error}; choose another "
            "address with --metrics-port and --metrics-host"
        )
        raise CannotOpenError(text) from error
    return bound


async def _announce(
    server: "Server",
    ready: Callable[[str, int], None],
    beside: "Beside | None",
    nursery: "trio.Nursery",
) -> None:
    await server.ready.wait()
    if beside is not None:
        await nursery.start(beside, server)
    ready(*server.address)

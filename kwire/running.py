"""Runs one node in this process until a signal ends it: SIGTERM or SIGINT stop it in order, a
second one at once.

A disk that refuses what the node cannot do without (its metadata log) ends it with one clear line.
"""

import errno
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final

import trio

from kwire.configs.broker import BrokerConfig
from kwire.errors import (
    DuplicateBrokerRegistration,
    InconsistentClusterId,
    InvalidRegistration,
    KafkaStorageError,
)
from kwire.formatting import CannotOpenError, refusal, with_remedy
from kwire.server import Server

log = logging.getLogger(__name__)

NOT_TAKEN: Final = (DuplicateBrokerRegistration, InconsistentClusterId, InvalidRegistration)
"""A broker that the controller refuses for good, or whose id another one has taken."""
OF_THE_DISK: Final = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES}


def run_until_signal(
    config: BrokerConfig,
    *,
    cluster_id: str | None,
    metrics_port: int | None,
    metrics_host: str | None = None,
    ready: Callable[[str, int], None],
    at_once: Callable[[], None] = lambda: None,
) -> None:
    """Run one node in this process until SIGTERM or SIGINT; a second one ends it at once.

    ``at_once`` is called before that end, which runs no other cleaning up.
    """
    try:
        trio.run(_until_signal, config, cluster_id, metrics_port, metrics_host, ready, at_once)
    except BaseExceptionGroup as failed:
        errors = list(_leaves(failed))
        if isinstance(errors[0], CannotOpenError):
            raise errors[0] from failed
        if isinstance(errors[0], NOT_TAKEN):
            log.debug("the controller does not take this broker", exc_info=failed)
            raise CannotOpenError(f"cannot go on: {_in_words(errors[0])}") from failed
        if not all(map(_is_of_the_disk, errors)):
            raise
        log.debug("the disk failed", exc_info=failed)
        raise CannotOpenError(f"cannot go on: {_in_words(errors[0])}") from failed


def _in_words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename:
        return refusal(str(error.filename), error)
    if isinstance(error.__cause__, OSError):
        return with_remedy(str(error), error.__cause__)
    return str(error)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _is_of_the_disk(error: BaseException) -> bool:
    return isinstance(error, KafkaStorageError) or (
        isinstance(error, OSError) and error.errno in OF_THE_DISK
    )


async def _until_signal(
    config: BrokerConfig,
    cluster_id: str | None,
    metrics_port: int | None,
    metrics_host: str | None,
    ready: Callable[[str, int], None],
    at_once: Callable[[], None],
) -> None:
    server = Server(config, cluster_id)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            if metrics_port is not None:
                await show(nursery, server, metrics_host, metrics_port)
            nursery.start_soon(_stop_on, signals, server, at_once)
            nursery.start_soon(_announce, server, ready)
            await server.run()
            nursery.cancel_scope.cancel()


async def show(nursery: trio.Nursery, server: Server, host: str | None, port: int) -> int:
    """Show metrics, by default where clients reach the node and nowhere else; return the port."""
    from kwire.net.metrics import serve_pages
    from kwire.node.pages import pages

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


async def _announce(server: Server, ready: Callable[[str, int], None]) -> None:
    await server.ready.wait()
    ready(*server.address)


async def _stop_on(
    signals: AsyncIterator[int], server: Server, at_once: Callable[[], None]
) -> None:
    stopping = False
    async for number in signals:
        log.info("signal number=%d", number)
        if stopping:
            at_once()
            os._exit(128 + number)
        stopping = True
        server.stop()

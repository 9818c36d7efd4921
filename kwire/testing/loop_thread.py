"""A trio loop in its own thread, in which one asynchronous context is open.

Rules: the thread ends with the context. A call from another thread, whether that thread runs
asyncio, trio or no loop at all, blocks until the loop has answered.
"""

import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from typing import Generic, TypeVar

import attrs
import trio

from kwire.testing.errors import BrokerError

T = TypeVar("T")
R = TypeVar("R")


@attrs.define(eq=False, repr=False)
class LoopThread(Generic[T]):
    """The thread; :meth:`start` creates it, :meth:`stop` ends it."""

    open: Callable[[], AbstractAsyncContextManager[T]]
    """Opens the context, in the thread's loop."""
    name: str
    clock: trio.abc.Clock
    """The clock of the loop."""
    failure: BaseException | None = None
    """The error that ended the context early."""
    _process: int = attrs.field(factory=os.getpid)
    """The process that has the thread; one that it forks has not."""
    _thread: threading.Thread | None = None
    _opened: "Future[T]" = attrs.field(factory=Future)
    _calls: trio.Nursery | None = None
    """Runs the calls of other threads; None while calls are not possible."""
    _token: trio.lowlevel.TrioToken | None = None
    _stop: trio.Event = attrs.field(factory=trio.Event)

    def start(self) -> T:
        """Start the thread and return the context's value, once it is open."""
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()
        try:
            return self._opened.result()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Leave the context and end the thread, in the process that has it."""
        if self._thread is not None and not self.is_forked:
            if self._token is not None:
                with suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(self._stop.set)
            self._thread.join()
            self._thread = None

    @property
    def is_forked(self) -> bool:
        """True in a process that was forked from the one that has the thread."""
        return os.getpid() != self._process

    def call(self, function: Callable[..., Awaitable[R]], *arguments: object) -> R:
        """Call an asynchronous function in the loop and return its result."""
        answer: Future[R] = Future()

        def begin() -> None:
            if self._calls is None:
                answer.set_exception(BrokerError("the broker has ended"))
            else:
                self._calls.start_soon(self._answer, answer, function, arguments)

        if self._token is None:
            raise BrokerError("the broker is not running; use it as a context manager")
        if self.is_forked:
            raise BrokerError(
                "the broker runs in the process that forked this one: here only connect clients "
                "to its bootstrap_servers"
            )
        try:
            self._token.run_sync_soon(begin)
        except trio.RunFinishedError:
            raise BrokerError("the broker has ended") from None
        return answer.result()

    def _run(self) -> None:
        try:
            trio.run(self._serve, clock=self.clock)
        except BaseException as error:  # noqa: BLE001  The thread that uses the context raises it.
            if self._opened.done():
                self.failure = error
            else:
                self._opened.set_exception(error)

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with self.open() as value:
            try:
                async with trio.open_nursery() as calls:
                    self._calls = calls
                    self._opened.set_result(value)
                    await self._stop.wait()
                    calls.cancel_scope.cancel()
            finally:
                self._calls = None

    @staticmethod
    async def _answer(
        answer: "Future[R]", function: Callable[..., Awaitable[R]], arguments: tuple[object, ...]
    ) -> None:
        try:
            answer.set_result(await function(*arguments))
        except trio.Cancelled:
            answer.set_exception(BrokerError("the broker has ended"))
            raise
        except BaseException as error:  # noqa: BLE001  The calling thread raises it.
            answer.set_exception(error)

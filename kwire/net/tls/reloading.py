"""Reloads certificates when their files or settings change, without ending a connection.

Files are checked when connections are made, at most once in :data:`CHECK_S`, in a thread: an idle
node reads nothing, and a file system that hangs delays only one connection. If the new files are
unusable, for example half written, or may not replace the old ones, the old certificates stay in
use, and the reason is logged once.
"""

import logging
import os
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import attrs
import trio

from kwire.configs.declare import ConfigError
from kwire.configs.tls import TlsConfig
from kwire.net.tls.stores import store_files

T = TypeVar("T")
Stamp = tuple[int, int, int] | None
"""The inode, size and time of a file's last change; None if it cannot be read."""

logger = logging.getLogger(__name__)

CHECK_S: Final = 5.0


@attrs.define(eq=False, repr=False)
class Reloading(Generic[T]):
    """An object built from the certificates that the settings name, rebuilt when they change."""

    use: str
    """For logs: what the certificates are for, as key=value."""
    settings: TlsConfig
    load: Callable[[TlsConfig], T]
    """Reads the files; raises ConfigError if they are unusable."""
    now: Callable[[], float]
    check: Callable[[TlsConfig, T, T], None] = lambda settings, old, new: None
    """Raises ConfigError if the new object may not replace the old one."""
    current: T = attrs.field(init=False)
    _stamps: list[Stamp] | None = attrs.field(init=False)
    """The stamps of the files when they were last read; None if they must be read again."""
    _checked_at: float = attrs.field(init=False)
    _is_checking: bool = False

    def __attrs_post_init__(self) -> None:
        self._stamps = _read_stamps(self.settings)
        self.current = self.load(self.settings)
        self._checked_at = self.now()

    def configure(self, settings: TlsConfig) -> None:
        """Use new settings from the next connection onwards, even if the files are the same."""
        self.settings, self._stamps, self._checked_at = settings, None, float("-inf")

    async def examine(self, settings: TlsConfig) -> T:
        """Return the result for other settings, without starting to use it.

        Raises ConfigError if :meth:`refresh` would reject it too.
        """
        await self.refresh()
        result = await trio.to_thread.run_sync(self.load, settings)
        self.check(settings, self.current, result)
        return result

    async def refresh(self) -> T:
        """Return the result for the current files, checking them first if a check is due."""
        if self._is_checking or self.now() - self._checked_at < CHECK_S:
            return self.current
        self._is_checking = True
        settings = self.settings
        try:
            changed = await trio.to_thread.run_sync(self._read_changed, settings, self._stamps)
            if changed is not None and settings is self.settings:
                self._replace(*changed)
            if settings is self.settings:
                self._checked_at = self.now()
        finally:
            self._is_checking = False
        return self.current

    def _replace(self, stamps: list[Stamp], result: T | ConfigError) -> None:
        self._stamps = stamps
        try:
            if isinstance(result, ConfigError):
                raise result
            self.check(self.settings, self.current, result)
        except ConfigError as error:
            logger.error("certificates not reloaded %s reason=%s", self.use, error)
        else:
            self.current = result
            logger.info("certificates reloaded %s", self.use)

    def _read_changed(
        self, settings: TlsConfig, previous: list[Stamp] | None
    ) -> tuple[list[Stamp], T | ConfigError] | None:
        """Read the files if they have changed; runs in a thread."""
        stamps = _read_stamps(settings)
        if stamps == previous:
            return None
        try:
            return stamps, self.load(settings)
        except ConfigError as error:
            return stamps, error


def _read_stamps(settings: TlsConfig) -> list[Stamp]:
    return [_read_stamp(path) for path in store_files(settings)]


def _read_stamp(path: str) -> Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns

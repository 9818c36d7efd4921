"""The lease of a checkpoint: only one run at a time writes with it.

A run writes ``writer.json`` beside the checkpoint with its host, its process and a beat number that
it increments every few seconds. A run that finds the file checks whether the process is alive if it
can see that process, which requires the same boot of the same kernel, and the same container;
otherwise it waits for two beats. If the beat increases, the writer is alive and the new run is
refused; if not, the writer ended without cleaning up, and its lease is taken over. Clocks of two
hosts are never compared.

The file is replaced only if it is unchanged since its reader read it. So on S3 only one of two new
runs takes over a lease, and a writer that was paused does not overwrite its successor's lease. A
writer checks its own lease before each batch and each write, so a writer that was paused for longer
stops. It may also be paused right after such a check; then only the table can reject its commit,
which Iceberg and Delta do and Parquet does not.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

import attrs
from py4j.protocol import Py4JError

from kwire_pipeline.errors import Failure, Held, Overtaken, Refusal
from kwire_pipeline.explain import sentence

FILE: Final = "writer.json"
BEAT_S: Final = 10.0
PATIENCE_S: Final = 25.0
POLL_S: Final = 1.0
TAKEN_OVER: Final = "another run has taken over the checkpoint, so this run has stopped"
ABANDONED: Final[set[str]] = set()
"""The ids of leases of this process that nobody holds, but that a failing store may still have."""


@attrs.frozen(kw_only=True)
class Holder:
    """The run that holds a lease."""

    lease_id: str
    host: str
    process: int
    process_start: str
    """The start time of the process in kernel ticks, because process ids are reused."""
    beat: int = 0
    machine: str = ""
    """The boot of the kernel and the namespace of process ids; empty if unknown.

    Containers may have the same host name, and processes of one do not see those of another.
    """

    @classmethod
    def this_process(cls) -> "Holder":
        process = os.getpid()
        return cls(
            lease_id=uuid.uuid4().hex,
            host=socket.gethostname(),
            process=process,
            process_start=process_start(process),
            machine=this_machine(),
        )

    def sees(self, other: "Holder") -> bool:
        """Return whether the other run's process would be visible to this one."""
        return bool(self.machine) and (self.host, self.machine) == (other.host, other.machine)

    def dump(self) -> str:
        return json.dumps(attrs.asdict(self)) + "\n"

    @classmethod
    def parse(cls, text: str) -> "Holder":
        """Parse the output of `dump`; raise Refusal for a file that a crash has damaged."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            raise Refusal(
                f"{FILE} beside the checkpoint is damaged: remove it when no run writes with the "
                "checkpoint"
            ) from None


def process_start(process: int) -> str:
    """Return the start time of a process; empty if it does not run or there is no /proc."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def this_machine() -> str:
    """Return the boot of the kernel and the namespace of process ids; empty without a /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


class Files(Protocol):
    """The folder of a lease; `kwire_pipeline.engine.storage.Folder` implements it."""

    @property
    def url(self) -> str: ...

    def exists(self) -> bool: ...

    def delete_empty(self) -> None:
        """Delete the folder if it is empty."""

    def read(self, name: str) -> str | None: ...

    def write(self, name: str, text: str) -> None: ...

    def create(self, name: str, text: str) -> bool:
        """Write a file unless one of that name exists; return whether it was written."""

    def swap(self, name: str, old: str, new: str) -> bool:
        """Replace a file whose text is ``old``; return whether it was replaced."""

    def delete(self, name: str) -> None: ...


class Lease:
    """The lease that this run holds."""

    def __init__(
        self, folder: Files, holder: Holder, clock: Callable[[], float], *, makes_folder: bool
    ) -> None:
        self._folder = folder
        self._makes_folder = makes_folder
        self._holder = holder
        self._clock = clock
        self._last_beat_s = clock()

    @classmethod
    def take(
        cls,
        folder: Files,
        *,
        holder: Holder | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> "Lease":
        """Take the lease of a folder; raise Held while another run holds it."""
        holder = holder or Holder.this_process()
        makes_folder = not folder.exists()
        with abandoning(holder):
            _take(folder, holder, sleep)
        return cls(folder, holder, clock, makes_folder=makes_folder)

    def beat(self) -> None:
        """Increment the beat if it is due; raise Failure if another run has taken over."""
        if self._clock() - self._last_beat_s >= BEAT_S:
            beaten = attrs.evolve(self._holder, beat=self._holder.beat + 1)
            if self._folder.swap(FILE, self._holder.dump(), beaten.dump()):
                self._last_beat_s = self._clock()
            elif self._folder.read(FILE) != beaten.dump():
                raise Overtaken(TAKEN_OVER)
            # Otherwise an earlier call wrote this beat and got no answer: another one is due.
            self._holder = beaten

    def check(self) -> None:
        """Raise Failure if another run has taken over the lease."""
        text = self._folder.read(FILE)
        if text is None or Holder.parse(text).lease_id != self._holder.lease_id:
            raise Overtaken(TAKEN_OVER)

    def release(self) -> None:
        """Delete the lease if this run still holds it.

        If the lease created the folder, the folder is also deleted unless it has other contents, so
        that a checkpoint can be restored by moving it to this name.
        """
        with abandoning(self._holder):
            text = self._folder.read(FILE)
            if text is not None and Holder.parse(text).lease_id == self._holder.lease_id:
                self._folder.delete(FILE)
                if self._makes_folder:
                    self._folder.delete_empty()


@contextmanager
def abandoning(holder: Holder) -> Iterator[None]:
    """Record that nobody holds a lease if its creation or release fails.

    The store may contain the lease nevertheless, and its process is alive: without this record, the
    process would wait for itself.
    """
    try:
        yield
    except Refusal:
        raise
    except Exception:
        ABANDONED.add(holder.lease_id)
        raise


def _take(folder: Files, holder: Holder, sleep: Callable[[float], None]) -> None:
    """Write a lease if there is none, or if its holder is gone; raise Held otherwise."""
    while not folder.create(FILE, holder.dump()):
        text = folder.read(FILE)
        if text is None:
            continue
        other = Holder.parse(text)
        if other.lease_id not in ABANDONED and _is_held(folder, holder, other, sleep):
            raise Held(
                f"process {other.process} on {other.host} is using the checkpoint "
                f"{folder.url}: wait until it ends, or stop it"
            )
        if folder.swap(FILE, text, holder.dump()):
            break


def _is_held(folder: Files, holder: Holder, other: Holder, sleep: Callable[[float], None]) -> bool:
    return is_alive(other) if holder.sees(other) else _beats(folder, other, sleep)


@contextmanager
def releasing(lease: Lease, warn: Callable[[str], None]) -> Iterator[None]:
    """Release a lease after a block.

    If both the block and the release fail, as they do while the store is unreachable, the user
    needs the block's error; the other error is only a warning.
    """
    try:
        yield
    except BaseException:
        try:
            lease.release()
        except Exception as error:  # noqa: BLE001 Java's client of the store may raise anything
            reason = sentence(str(error))
            warn(f"the lease of the checkpoint is not released, so a run waits for it: {reason}")
        raise
    lease.release()


def wait_poll(ended: threading.Event) -> bool:
    """Wait before looking at the clock again; return whether the block has ended."""
    return ended.wait(POLL_S)


@contextmanager
def hold(
    folder: Files,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[threading.Event], bool] = wait_poll,
    warn: Callable[[str], None] = lambda text: None,
) -> Iterator[Lease]:
    """Hold a lease during a block that may take hours in one call."""
    lease = Lease.take(folder, clock=clock)
    with releasing(lease, warn), beating(lease, pause):
        yield lease


@contextmanager
def beating(lease: Lease, pause: Callable[[threading.Event], bool] = wait_poll) -> Iterator[None]:
    """Increment the beat in a thread during a block.

    If that fails, the block continues; if another run has taken over the lease, `check` reports it.
    """
    ended = threading.Event()

    def beat() -> None:
        with suppress(Failure):
            while not pause(ended):
                with suppress(Py4JError):
                    lease.beat()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def is_alive(other: Holder) -> bool:
    """Return whether a lease's run is a live process, if its process is visible here."""
    return bool(other.process_start) and process_start(other.process) == other.process_start


def _beats(folder: Files, other: Holder, sleep: Callable[[float], None]) -> bool:
    """Return whether a run that is not visible here increments its beat in time."""
    sleep(PATIENCE_S)
    text = folder.read(FILE)
    return text is not None and Holder.parse(text) != other

"""A file beside the checkpoint is whole at every moment in object stores, too.

Hadoop replaces a file by a rename in two steps there: it deletes the target, then it copies.
"""

import contextlib
from collections.abc import Callable

import attrs
import pytest

from kwire_pipeline.engine.lease import Lease
from kwire_pipeline.engine.storage import Folder


class Crash(Exception):
    """The end of the process."""


@attrs.frozen
class Uri:
    scheme: str

    def getScheme(self) -> str:
        return self.scheme


@attrs.frozen
class Stream:
    """A file that is read or written as a whole."""

    store: "Store"
    place: str

    def write(self, data: bytes) -> None:
        if not self.store.puts_at_close:
            self.store.put(self.place, data[: len(data) // 2])
            self.store.put(self.place, data)
        else:
            self.store.pending[self.place] = data

    def close(self) -> None:
        if self.place in self.store.pending:
            self.store.put(self.place, self.store.pending.pop(self.place))


@attrs.define
class Store:
    """An object store as Hadoop's file system, with what its clients need of Hadoop itself."""

    puts_at_close: bool
    """True if a file appears when it is closed; else its beginning appears before."""
    on_step: Callable[[], None] = lambda: None
    """Called after each request that changes the store."""
    texts_by_place: dict[str, bytes] = attrs.field(factory=dict)
    pending: dict[str, bytes] = attrs.field(factory=dict)
    configuration: None = None

    @property
    def texts(self) -> "Store":
        return self

    def path_class(self, text: str) -> "Path":
        return Path(self, text)

    def getClass(self) -> "Store":
        return self

    def getName(self) -> str:
        """Return the name of this class of Java; that of S3A has tests in `compat_tests/lake`."""
        return "Store"

    def makeQualified(self, path: "Path") -> "Path":
        return path

    def put(self, place: str, data: bytes) -> None:
        self.texts_by_place[place] = data
        self.on_step()

    def exists(self, path: "Path") -> bool:
        return any(
            place == path.text or place.startswith(f"{path.text}/") for place in self.texts_by_place
        )

    def open(self, path: "Path") -> Stream:
        return Stream(self, path.text)

    def create(self, path: "Path", overwrite: bool) -> Stream:
        if not self.puts_at_close:
            self.put(path.text, b"")
        return Stream(self, path.text)

    def toString(self, stream: Stream, encoding: str) -> str:
        return self.texts_by_place[stream.place].decode()

    def delete(self, path: "Path", recursive: bool) -> None:
        self.texts_by_place.pop(path.text, None)
        self.on_step()

    def rename(self, path: "Path", target: "Path", *, replace: bool) -> None:
        if replace and self.exists(target):
            self.delete(target, False)
        assert not self.exists(target)
        self.put(target.text, self.texts_by_place[path.text])
        self.delete(path, False)

    def publish(self, path: "Path", target: "Path") -> None:
        self.rename(path, target, replace=False)


@attrs.frozen
class Path:
    store: Store
    text: str

    def toUri(self) -> Uri:
        return Uri(self.text.partition(":")[0])

    def getFileSystem(self, configuration: None) -> Store:
        return self.store


SCHEMES = {"s3a": True, "gs": True, "abfs": False}


def folder_in(scheme: str) -> tuple[Store, Folder]:
    store = Store(puts_at_close=SCHEMES[scheme])
    return store, Folder(None, f"{scheme}://lake/checkpoint", store)  # type: ignore[arg-type]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_reader_sees_the_old_or_the_new_file_at_each_step(scheme: str) -> None:
    store, folder = folder_in(scheme)
    folder.write("pipeline.json", "old")
    texts: list[str | None] = []
    store.on_step = lambda: texts.append(folder.read("pipeline.json"))
    folder.write("pipeline.json", "new")
    assert set(texts) <= {"old", "new"}
    assert texts[-1] == folder.read("pipeline.json") == "new"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_file_is_there_after_a_crash_at_any_two_steps(scheme: str) -> None:
    """The second writer ends in the repair of what the first one left."""
    for first in range(1, 12):
        for second in range(1, 12):
            store, folder = folder_in(scheme)
            folder.write("pipeline.json", "old")
            for limit, text in ((first, "new"), (second, "newer")):
                crash_after(store, limit, folder, text)
            assert folder.read("pipeline.json") in ("old", "new", "newer")
            folder.write("pipeline.json", "newest")
            assert folder.read("pipeline.json") == "newest"


def crash_after(store: Store, steps: int, folder: Folder, text: str) -> None:
    """Write a file, unless the process ends after some steps."""
    countdown = steps

    def count() -> None:
        nonlocal countdown
        countdown -= 1
        if countdown == 0:
            raise Crash

    store.on_step = count
    with contextlib.suppress(Crash):
        folder.write("pipeline.json", text)
    store.pending.clear()
    store.on_step = lambda: None


@pytest.mark.parametrize("scheme", SCHEMES)
def test_run_does_not_end_itself_at_its_own_beat(scheme: str) -> None:
    """The batch looks at the lease while the main thread raises the beat."""
    store, folder = folder_in(scheme)
    folder.write("pipeline.json", "{}")
    now_s = 0.0
    lease = Lease.take(folder, clock=lambda: now_s)
    store.on_step = lease.check
    for _ in range(3):
        now_s += 60
        lease.beat()
    store.on_step = lambda: None
    lease.release()
    assert folder.read("writer.json") is None


@pytest.mark.parametrize("scheme", SCHEMES)
def test_file_is_replaced_only_if_it_is_as_it_was_read(scheme: str) -> None:
    _, folder = folder_in(scheme)
    assert not folder.swap("writer.json", "first", "second")
    folder.write("writer.json", "first")
    assert folder.swap("writer.json", "first", "second")
    assert not folder.swap("writer.json", "first", "third")
    assert folder.read("writer.json") == "second"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_file_is_created_once(scheme: str) -> None:
    _, folder = folder_in(scheme)
    assert folder.create("writer.json", "first")
    assert not folder.create("writer.json", "second")
    assert folder.read("writer.json") == "first"

"""A fetch session's watch over its partitions: idle partitions cost its fetches nothing.

A partition is *settled* if its last visit found nothing to read and no error, and the follower was
in sync. A fetch visits it again only after a change. Rules:

* A partition is watched from its first visit in the session until the session ends, a request
  removes the partition, or the next rule applies. A request that outlives its session watches
  nothing. Every append, commit and role change is reported to
  :class:`kwire.replica.fetch_waits.FetchWaits`, which marks the partition in all sessions.
* If many sessions watch a partition, those that do not fetch stop watching it once it is marked:
  their next request visits it anyway. Otherwise each append would report to the sessions of clients
  that ended without closing them, which stay until a new session needs their room.
* Each request of a follower's session counts as a fetch of its settled partitions, although the
  request does not name them: at the next change, or when the session ends, the time of its last
  request is recorded as the follower's last fetch.
"""

from collections.abc import Generator, Iterable
from typing import Generic, TypeVar

import attrs

from kwire.replica.byte_waits import ByteWaits, Watch
from kwire.replica.fetch_sessions import Ref, Session
from kwire.replica.partition import Partition

T = TypeVar("T")


@attrs.define(eq=False, repr=False)
class FetchSessionWatch(Generic[T]):
    """The watched partitions of one session."""

    session: Session
    replica: int
    """The broker id of a follower, negative for a consumer."""
    waits: ByteWaits[Partition, T]
    watch: Watch[Partition, T] = attrs.field(init=False)
    _partitions: dict[Ref, Partition] = attrs.field(factory=dict)
    _refs: dict[Partition, Ref] = attrs.field(factory=dict)
    _is_ended: bool = False
    """True once the session has ended; its last request may still be waiting."""

    def __attrs_post_init__(self) -> None:
        self.watch = Watch(self._on_changed)

    def __len__(self) -> int:
        return len(self._refs)

    @property
    def has_changes(self) -> bool:
        """True if a partition has changed since the request took the session's partitions."""
        return bool(self.session.unsettled)

    def on_visited(self, ref: Ref, partition: Partition) -> None:
        """Watch a partition that the request has visited; the response covers its changes so far.

        One of these changes may be that a follower's visit itself has moved the high watermark.
        """
        self.session.unsettled.pop(ref, None)
        if partition not in self._refs and not self._is_ended:
            self.remove((ref,))
            self._partitions[ref] = partition
            self._refs[partition] = ref
            self.waits.watch(self.watch, partition)

    def remove(self, refs: Iterable[Ref]) -> None:
        """Stop watching partitions."""
        for ref in refs:
            partition = self._partitions.pop(ref, None)
            if partition is not None:
                del self._refs[partition]
                self.waits.unwatch(self.watch, (partition,))

    def ending(self) -> Generator[None, None, None]:
        """Stop watching all partitions, because the session has ended; pause after each."""
        self._is_ended = True
        while self._partitions:
            ref, partition = self._partitions.popitem()
            requested, leader = self.session.partitions.get(ref), partition.leader
            if leader is not None and requested is not None and requested.is_settled:
                leader.on_idle_fetches(self.replica, self.session.used_at)
            del self._refs[partition]
            self.waits.unwatch(self.watch, (partition,))
            yield

    def _on_changed(self, partition: Partition) -> None:
        ref = self._refs[partition]
        if not self.session.mark(ref):
            if self.watch.wait is None and self.waits.has_many_watches(partition):
                self.remove((ref,))
        elif partition.leader is not None:
            partition.leader.on_idle_fetches(self.replica, self.session.used_at)

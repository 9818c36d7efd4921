"""Waits of fetches: they complete when their bytes are readable, or at their deadline."""

from kwire.replica.byte_waits import ALL_ISOLATIONS, ENOUGH_BYTES, ByteWait, ByteWaits, Watch
from kwire.replica.partition import SHARED_MAX, FetchIsolation, ReadResult, SharedRead, SharedReads


def add_wait(
    subject: ByteWaits[str, str],
    waiter: str,
    keys: list[str],
    missing: int,
    isolation: FetchIsolation,
) -> ByteWait[str, str]:
    byte_wait: ByteWait[str, str] = ByteWait(waiter, isolation, missing)
    subject.add(byte_wait, keys)
    return byte_wait


def test_fetch_completes_by_the_bytes_of_all_its_partitions():
    subject: ByteWaits[str, str] = ByteWaits()
    add_wait(subject, "w", ["p", "q"], 100, FetchIsolation.HIGH_WATERMARK)
    assert subject.pop_complete("p", (FetchIsolation.HIGH_WATERMARK,), 60) == []
    assert subject.pop_complete("q", (FetchIsolation.STABLE,), 60) == []  # Another isolation level.
    assert subject.pop_complete("r", (FetchIsolation.HIGH_WATERMARK,), 60) == []
    assert subject.pop_complete("q", (FetchIsolation.HIGH_WATERMARK,), 40) == ["w"]
    assert "p" not in subject.watched
    assert len(subject) == 0


def test_change_of_role_completes_all_fetches_of_the_partition():
    subject: ByteWaits[str, str] = ByteWaits()
    add_wait(subject, "a", ["p", "q"], 100, FetchIsolation.HIGH_WATERMARK)
    add_wait(subject, "b", ["p"], 1, FetchIsolation.LOG_END)
    add_wait(subject, "c", ["q"], 1, FetchIsolation.STABLE)
    assert subject.pop_all("p") == ["a", "b"]
    assert subject.pop_all("p") == []
    assert subject.pop_complete("q", (FetchIsolation.STABLE,), 1) == ["c"]


def test_end_of_a_transaction_completes_read_committed_fetches_of_sessions() -> None:
    waits: ByteWaits[str, str] = ByteWaits()
    for name, isolation in (("a", FetchIsolation.STABLE), ("b", FetchIsolation.HIGH_WATERMARK)):
        watch: Watch[str, str] = Watch(lambda _: None)
        waits.watch(watch, "p")
        watch.wait = ByteWait(name, isolation, 100, watch=watch)
    assert waits.pop_isolation("p", FetchIsolation.STABLE) == ["a"]
    assert waits.pop_isolation("p", FetchIsolation.STABLE) == []
    assert waits.pop_isolation("p", FetchIsolation.HIGH_WATERMARK) == ["b"]


def test_discarded_wait_does_not_complete():
    subject: ByteWaits[str, str] = ByteWaits()
    byte_wait = add_wait(subject, "a", ["p", "q"], 1, FetchIsolation.LOG_END)
    subject.discard(byte_wait)
    subject.discard(byte_wait)
    assert subject.pop_complete("p", (FetchIsolation.LOG_END,), 5) == []
    assert len(subject) == 0


def test_complete_wait_for_many_partitions_is_not_completed_again() -> None:
    """Its fetch forgets the partitions later, with pauses."""
    subject: ByteWaits[str, str] = ByteWaits()
    keys = [f"p{number}" for number in range(1000)]
    byte_wait = add_wait(subject, "w", keys, 100, FetchIsolation.STABLE)
    assert subject.pop_complete("p1", (FetchIsolation.STABLE,), 100) == ["w"]
    assert subject.pop_complete("p2", (FetchIsolation.STABLE,), 100) == []
    assert subject.pop_isolation("p3", FetchIsolation.STABLE) == []
    assert subject.pop_all("p4") == []
    for _ in subject.discarding(byte_wait):
        assert subject.pop_complete("p999", (FetchIsolation.STABLE,), 100) == []
    assert not subject.watched


def test_number_of_shared_reads_is_limited() -> None:
    """Fetches that one append completes may all request something else."""

    def read(size: int) -> SharedRead:
        return SharedRead((), ReadResult(0, 0, 0), size, {})

    shared_reads = SharedReads()
    for number in range(1000):
        shared_reads.keep(number, read(number))
    shared_reads.keep(3, read(5000))
    assert len(shared_reads.reads) == SHARED_MAX
    assert shared_reads.reads[3].size == 5000


def test_only_fetches_completed_by_one_append_share_reads() -> None:
    waits = ByteWaits[str, str]()
    first_waits = [ByteWait[str, str](name, FetchIsolation.HIGH_WATERMARK, 10) for name in "ab"]
    later = ByteWait[str, str]("c", FetchIsolation.HIGH_WATERMARK, 20)
    for wait in (*first_waits, later):
        waits.add(wait, ["p"])
    assert waits.pop_complete("p", (FetchIsolation.HIGH_WATERMARK,), 10) == ["a", "b"]
    assert first_waits[0].shared_reads is first_waits[1].shared_reads is not None
    assert waits.pop_complete("p", (FetchIsolation.HIGH_WATERMARK,), 10) == ["c"]
    assert later.shared_reads is None


def test_append_completes_followers_before_consumers() -> None:
    """They complete in the order of the isolation levels, and only equal levels share reads."""
    waits = ByteWaits[str, str]()
    for name, isolation in {
        "committed": FetchIsolation.STABLE,
        "consumer": FetchIsolation.HIGH_WATERMARK,
        "follower": FetchIsolation.LOG_END,
    }.items():
        waits.add(ByteWait(name, isolation, 10), ["p"])
    followers = (FetchIsolation.LOG_END, FetchIsolation.HIGH_WATERMARK)
    assert waits.pop_complete("p", followers, 10) == ["follower", "consumer"]
    assert waits.pop_complete("p", (FetchIsolation.STABLE,), 10) == ["committed"]


def test_bytes_that_are_counted_later_count_for_the_waits_of_their_time() -> None:
    """A fetch that begins in between has seen them; one that has ended counts nothing."""
    waits = ByteWaits[str, str]()
    levels = (FetchIsolation.HIGH_WATERMARK,)
    added = {name: ByteWait[str, str](name, levels[0], 10) for name in "abcd"}
    for wait in added.values():
        waits.add(wait, ["p"])
    arrival = waits.find("p", levels, 10)
    waits.discard(added["b"])
    waits.add(ByteWait("later", levels[0], 10), ["p"])
    assert waits.count(arrival, 3) == ["a", "c"]
    assert not arrival.is_counted
    assert waits.count(arrival, 3) == ["d"]
    assert arrival.is_counted
    assert added["a"].shared_reads is added["d"].shared_reads is not None
    assert waits.pop_complete("p", levels, 10) == ["later"]
    assert not waits.watched


def test_new_role_that_is_counted_later_outdates_the_waits_of_its_time() -> None:
    """Invariant 101: those of all isolation levels end, and their fetches check all partitions."""
    waits: ByteWaits[str, str] = ByteWaits()
    begun = [add_wait(waits, f"{each.name}", ["p"], 100, each) for each in FetchIsolation]
    change = waits.find("p", ALL_ISOLATIONS, ENOUGH_BYTES)
    change.is_change = True
    late = add_wait(waits, "late", ["p"], 100, FetchIsolation.STABLE)
    ended = [*waits.count(change, 2), *waits.count(change, 2)]
    assert ended == [each.waiter for each in begun]
    assert all(each.is_outdated and each.shared_reads is None for each in begun)
    assert not late.is_over
    assert not late.is_outdated

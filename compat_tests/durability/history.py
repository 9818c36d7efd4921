"""The history of a run with faults as clients saw it, and the checks for anomalies in it.

Every check is a pure function from a history to anomalies, one text each; a correct history has
none.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final, TypeVar

import attrs

from compat_tests.durability.group_views import (
    GroupView,
    commits_of_former_owners,
    double_owners,
    lost_epochs,
)
from compat_tests.durability.observations import (
    Batch,
    Call,
    Commit,
    Committed,
    EndOffset,
    Place,
    Poll,
    Send,
    Transaction,
    View,
)
from compat_tests.durability.sessions import (
    REFUSED_FOR_NOW,
    Session,
    SessionEvent,
    SkippedSequence,
)
from compat_tests.durability.share_history import share_group_anomalies
from simulation.share_rules import FOREVER, Acknowledgement, Delivery

CommitOrRead = TypeVar("CommitOrRead", Commit, Committed)


@attrs.define
class History:
    """The observations of all clients of one run."""

    sends: list[Send] = attrs.field(factory=list)
    polls: list[Poll] = attrs.field(factory=list)
    commits: list[Commit] = attrs.field(factory=list)
    committed: list[Committed] = attrs.field(factory=list)
    end_offsets: list[EndOffset] = attrs.field(factory=list)
    transactions: list[Transaction] = attrs.field(factory=list)
    calls: list[Call] = attrs.field(factory=list)
    session_events: list[SessionEvent] = attrs.field(factory=list)
    group_views: list[GroupView] = attrs.field(factory=list)
    deliveries: list[Delivery] = attrs.field(factory=list)
    acknowledgements: list[Acknowledgement] = attrs.field(factory=list)
    ends: dict[Place, int] = attrs.field(factory=dict)
    """End offsets after healing, when clients no longer send."""
    stable_ends: dict[Place, int] = attrs.field(factory=dict)
    """The last stable offsets at the same time."""
    healed: float = 0.0
    """The time at which the last fault ended."""
    sessions: dict[Place, dict[int, Session]] = attrs.field(factory=dict)
    """The producer session of each stored record, by offset; empty if the files are not at hand."""
    copies: dict[Place, dict[int, tuple[Batch, ...]]] = attrs.field(factory=dict)
    """The batches of each partition on each node at the end, in the order of the log."""
    views: dict[int, dict[Place, View]] = attrs.field(factory=dict)
    """The metadata of each node at the end."""
    samplers: set[str] = attrs.field(factory=set)
    """Readers that read parts of the partitions only."""

    def polled_records(self) -> Iterator[tuple[Poll, Place, int, bytes]]:
        for poll in self.polls:
            for place, offset, value in poll.records:
                yield poll, place, offset, value

    def acknowledged_sends(self) -> Iterator[tuple[Send, int]]:
        for send in self.sends:
            if send.outcome == "ok" and send.offset is not None and send.offset >= 0:
                yield send, send.offset

    def values(self) -> dict[Place, dict[int, set[bytes]]]:
        """Return the values at each offset that senders and readers observed."""
        values: dict[Place, dict[int, set[bytes]]] = defaultdict(lambda: defaultdict(set))
        for send, offset in self.acknowledged_sends():
            values[send.place][offset].add(send.value)
        for _, place, offset, value in self.polled_records():
            values[place][offset].add(value)
        return values


def lost_writes(history: History) -> list[str]:
    """Find acknowledged records that no reader got (invariant 1)."""
    polled = {(place, offset, value) for _, place, offset, value in history.polled_records()}
    return [
        f"lost: {_text(send.value)} acknowledged at {_at(send.place, offset)}"
        for send, offset in history.acknowledged_sends()
        if (send.place, offset, send.value) not in polled
    ]


def conflicting_values(history: History) -> list[str]:
    """Find offsets that held two values (invariant 2)."""
    return [
        f"two values at {_at(place, offset)}: {sorted(map(_text, values))}"
        for place, offsets in history.values().items()
        for offset, values in sorted(offsets.items())
        if len(values) > 1
    ]


def duplicates(history: History) -> list[str]:
    """Find values of idempotent producers at more than one offset (invariant 3).

    Kafka keeps duplicates out of one producer session. A client library ends its session after a
    record was refused or has expired, or a batch was refused for the sequence that a batch before
    it left out, and then sends again, in the next session, what had no answer: if that was stored,
    there are two (librdkafka #4953). So offsets in different sessions are no anomaly, if one of
    these happened to the client; else there is no cause for a new session.
    """
    client_of = {send.value: send.client for send in history.sends if send.is_idempotent}
    renewing = {send.client for send in history.sends if send.outcome != "ok"}
    renewing |= {
        event.client
        for event in history.session_events
        if isinstance(event, SkippedSequence) and event.earlier_error in REFUSED_FOR_NOW
    }
    offsets: dict[tuple[Place, bytes], set[int]] = defaultdict(set)
    for place, values_by_offset in history.values().items():
        for offset, values in values_by_offset.items():
            for value in values & client_of.keys():
                offsets[place, value].add(offset)
    anomalies = []
    for (place, value), at in offsets.items():
        sessions = [history.sessions.get(place, {}).get(offset) for offset in sorted(at)]
        are_apart = None not in sessions and len(set(sessions)) == len(at)
        if len(at) > 1 and not (are_apart and client_of[value] in renewing):
            events = [e for e in history.session_events if e.client == client_of[value]]
            anomalies.append(
                f"duplicate: {_text(value)} of {place} at {sorted(at)}, in {sessions}, {events}"
            )
    return anomalies


def dirty_reads(history: History) -> list[str]:
    """Find values of failed sends, and of aborted transactions at read_committed (invariant 4)."""
    aborted = {t.name for t in history.transactions if t.outcome == "aborted"}
    failed = {send.value for send in history.sends if send.outcome == "failed"}
    undone = {send.value for send in history.sends if send.transaction in aborted}
    return [
        f"dirty read: {poll.client} got {_text(value)} at {_at(place, offset)}"
        for poll, place, offset, value in history.polled_records()
        if value in failed or (poll.is_read_committed and value in undone)
    ]


def early_reads(history: History) -> list[str]:
    """Find values read at read_committed before their transaction's commit began (invariant 5)."""
    begun = {t.name: t.began for t in history.transactions}
    open_until = {
        send.value: begun.get(send.transaction, FOREVER)
        for send in history.sends
        if send.transaction is not None
    }
    return [
        f"early read: {poll.client} got {_text(value)} at {_at(place, offset)}"
        for poll, place, offset, value in history.polled_records()
        if poll.is_read_committed and poll.ended < open_until.get(value, 0.0)
    ]


def torn_transactions(history: History) -> list[str]:
    """Find transactions of which only a part became visible (invariant 6).

    A record counts as missing only if a read_committed reader got a later one.
    """
    highest: dict[Place, int] = {}
    visible_values: set[bytes] = set()
    for poll, place, offset, value in history.polled_records():
        if poll.is_read_committed:
            highest[place] = max(offset, highest.get(place, -1))
            visible_values.add(value)
    parts: dict[str, list[bool]] = defaultdict(list)
    for send, offset in history.acknowledged_sends():
        if send.transaction is not None and offset <= highest.get(send.place, -1):
            parts[send.transaction].append(send.value in visible_values)
    final = _final_offsets(history)
    for commit in _last_commits(history):
        if commit.transaction is not None and (commit.group, commit.place) in final:
            is_visible = final[commit.group, commit.place] == commit.offset
            parts[commit.transaction].append(is_visible)
    return [
        f"torn transaction: {name} shows {sum(visible)} of {len(visible)} parts"
        for name, visible in parts.items()
        if any(visible) and not all(visible)
    ]


def _last_commits(history: History) -> list[Commit]:
    """Return each commit that no later one of its group and partition may have replaced."""
    last: dict[tuple[str, Place], float] = {}
    for commit in history.commits:
        key = (commit.group, commit.place)
        last[key] = max(commit.began, last.get(key, 0.0))
    return [c for c in history.commits if c.began == last[c.group, c.place]]


def _final_offsets(history: History) -> dict[tuple[str, Place], int]:
    """Return the committed offsets after healing, 0 where there is none, by group and partition."""
    reads = [read for read in history.committed if read.began >= history.healed]
    reads.sort(key=lambda read: read.began)
    return {(read.group, read.place): read.offset or 0 for read in reads}


def skipped_polls(history: History) -> list[str]:
    """Find records that a reader skipped, between two polls or within one (invariant 7).

    Offsets without an observed record, such as those of markers, are gaps and not skips; so are
    aborted records, which no reader at read_committed gets.
    """
    offsets_by_place = _record_offsets(history)
    anomalies = []
    for client, place, previous, offset in _steps(history):
        if offset <= previous + 1:
            continue
        offsets = offsets_by_place.get(place, [])
        skipped = offsets[bisect_right(offsets, previous) : bisect_left(offsets, offset)]
        if skipped:
            anomalies.append(
                f"skip: {client} went from {_at(place, previous)} to {offset}, over {skipped[:5]}"
            )
    return anomalies


def nonmonotonic_polls(history: History) -> list[str]:
    """Find readers that got an offset again, or a lower one (invariant 8)."""
    return [
        f"nonmonotonic poll: {client} got {offset} after {_at(place, previous)}"
        for client, place, previous, offset in _steps(history)
        if offset <= previous
    ]


def _steps(history: History) -> Iterator[tuple[str, Place, int, int]]:
    """Yield each pair of consecutive offsets in one session of a reader."""
    last: dict[tuple[str, int, Place], int] = {}
    for poll, place, offset, _ in history.polled_records():
        key = (poll.client, poll.session, place)
        if key in last:
            yield poll.client, place, last[key], offset
        last[key] = offset


def nonmonotonic_sends(history: History) -> list[str]:
    """Find idempotent producers with a later record before an earlier one (invariant 8)."""
    last: dict[tuple[str, Place], int] = {}
    anomalies = []
    for send, offset in history.acknowledged_sends():
        key = (send.client, send.place)
        if send.is_idempotent and offset <= last.get(key, -1):
            anomalies.append(
                f"nonmonotonic send: {send.client} was given {_at(send.place, offset)},"
                f" after {last[key]}"
            )
        last[key] = max(offset, last.get(key, -1))
    return anomalies


def wrong_offsets(history: History) -> list[str]:
    """Find acknowledgements without an offset, or with another than the record's (invariant 9).

    A client library takes an unanswered batch of an idempotent producer for stored when a later
    one is acknowledged, and then names no offset (librdkafka does).
    """
    offsets_by_value: dict[tuple[Place, bytes], set[int]] = defaultdict(set)
    for _, place, offset, value in history.polled_records():
        offsets_by_value[place, value].add(offset)
    anomalies = []
    last: dict[tuple[str, Place], Send] = {
        (send.client, send.place): send for send, _ in history.acknowledged_sends()
    }
    for send in history.sends:
        offsets = offsets_by_value.get((send.place, send.value))
        if send.outcome != "ok":
            continue
        later = last.get((send.client, send.place))
        if send.offset is None and send.is_idempotent and later and later.began >= send.began:
            if not offsets:
                anomalies.append(f"lost: {_text(send.value)}, acknowledged without an offset")
        elif send.offset is None or send.offset < 0:
            anomalies.append(f"no offset: {_text(send.value)} acknowledged with {send.offset}")
        elif offsets and send.offset not in offsets:
            anomalies.append(
                f"wrong offset: {_text(send.value)} acknowledged at"
                f" {_at(send.place, send.offset)}, lies at {sorted(offsets)}"
            )
    return anomalies


def stuck_calls(history: History, bound: float) -> list[str]:
    """Find calls that outlast their time-out and healing by over ``bound`` s (invariant 10)."""
    return [
        f"stuck: {call.what} of {call.client} took {call.ended - call.began:.1f} s"
        for call in history.calls
        if call.ended > max(call.began + call.timeout, history.healed) + bound
    ]


def offsets_gone_back(history: History) -> list[str]:
    """Find reads of committed offsets that no order of the commits explains (invariant 11).

    A read returns the last commit that was acknowledged before it began, or a commit that may
    come after that one. A client that had no answer to a commit in time closes the connection and
    sends the commit again; what waits in the old connection, behind a network that is cut, may
    arrive last of all, and Kafka has no way to recognize it.

    Of a group with automatic commits only the reads are known, and its client may send an old
    commit again after a newer one when the broker was away (librdkafka does); so only the last read
    is checked, and no other may be above it.
    """
    anomalies = []
    commits_by_key = _by_key(history.commits)
    for key, reads in _by_key(history.committed).items():
        group, place = key
        if key in commits_by_key:
            possible_offsets = _possible_offsets(commits_by_key[key], reads)
            anomalies += [
                f"committed offset: {group} has {read.offset} of {place},"
                f" possible are {sorted(possible, key=lambda o: -1 if o is None else o)[-5:]}"
                for read, possible in zip(reads, possible_offsets, strict=True)
                if read.offset not in possible
            ]
        else:
            offsets = [read.offset or 0 for read in reads]
            if offsets[-1] < max(offsets):
                anomalies.append(
                    f"committed offset: {group} ends with {offsets[-1]} of {place},"
                    f" after {max(offsets)}"
                )
    return anomalies


def _by_key(
    observations: Iterable[CommitOrRead],
) -> dict[tuple[str, Place], list[CommitOrRead]]:
    """Return observations by group and partition, in the order of their beginnings."""
    by_key: dict[tuple[str, Place], list[CommitOrRead]] = defaultdict(list)
    for observation in sorted(observations, key=lambda observation: observation.began):
        by_key[observation.group, observation.place].append(observation)
    return by_key


def _possible_offsets(commits: list[Commit], reads: list[Committed]) -> Iterator[set[int | None]]:
    """Yield the offsets that each read may return; both lists are in the order of beginnings."""
    settled = sorted((c for c in commits if c.outcome == "ok"), key=lambda c: c.ended)
    waiting = deque(c for c in commits if c.outcome != "failed")
    candidates: list[Commit] = []
    last = -FOREVER
    number = 0
    for read in reads:
        while number < len(settled) and settled[number].ended <= read.began:
            last = max(last, settled[number].began)
            number += 1
        while waiting and waiting[0].began < read.ended:
            candidates.append(waiting.popleft())
        candidates = [c for c in candidates if _last_effect(c) > last]
        possible: set[int | None] = {c.offset for c in candidates if c.began < read.ended}
        yield possible if number else {*possible, None}


RESENT_AFTER: Final = 0.2
"""The seconds without an answer after which a request may have been sent again.

That is Linux's shortest time until TCP sends lost data again: a commit that is answered sooner was
sent once. librdkafka does not wait for its own limits: when a member's coordinator is not found, or
another request to it fails, it closes the connection and sends the commits in it again over the
next one. TCP goes on sending what the closed connection holds.
"""
LATEST_ARRIVAL: Final = 60.0
"""The seconds within which the first of two equal requests arrives after the answer to the other:
longer than the longest pause between two attempts of TCP while a fault lasts."""


def _last_effect(commit: Commit) -> float:
    """Return the time after which a commit can no longer take effect."""
    was_resent = commit.ended - commit.began >= RESENT_AFTER
    return commit.ended + LATEST_ARRIVAL if was_resent else commit.ended


def group_anomalies(history: History) -> list[str]:
    """Find partitions with two owners (invariant 66), lost epochs and zombies' commits (69)."""
    groups = {view.group for view in history.group_views}
    commits = [commit for commit in history.commits if commit.group in groups]
    anomalies = [*double_owners(history.group_views), *lost_epochs(history.group_views)]
    for accepted in _by_key(c for c in commits if c.outcome == "ok").values():
        anomalies += commits_of_former_owners(accepted)
    return anomalies


def share_anomalies(history: History) -> list[str]:
    """Find records that a share group did not get, or got after they were accepted (75)."""
    written = {(send.place, offset): send.value for send, offset in history.acknowledged_sends()}
    return share_group_anomalies(written, history.deliveries, history.acknowledgements)


def unread_commits(history: History) -> list[str]:
    """Find committed offsets after records that no member of the group got (invariant 11)."""
    returned: dict[tuple[str, Place], dict[int, float]] = defaultdict(dict)
    for poll, place, offset, _ in history.polled_records():
        if poll.group is not None:
            times = returned[poll.group, place]
            times[offset] = min(poll.began, times.get(offset, FOREVER))
    offsets_by_place = _record_offsets(history)
    anomalies = []
    for key, reads in _by_key(history.committed).items():
        offsets = offsets_by_place.get(key[1], [])
        first = [returned[key].get(offset, FOREVER) for offset in offsets]
        latest = list(accumulate(first, max))
        for read in reads:
            count = bisect_left(offsets, read.offset or 0)
            if count and latest[count - 1] > read.ended:
                unread = [offsets[n] for n in range(count) if first[n] > read.ended]
                anomalies.append(
                    f"unread: {read.group} committed {_at(read.place, read.offset or 0)},"
                    f" never given {unread[:5]}"
                )
    return anomalies


def _record_offsets(history: History) -> dict[Place, list[int]]:
    """Return the offsets of records that a consumer at read_committed may get, sorted."""
    committed = {t.name for t in history.transactions if t.outcome == "committed"}
    transaction_of = {send.value: send.transaction for send in history.sends}
    offsets: dict[Place, set[int]] = defaultdict(set)
    for send, offset in history.acknowledged_sends():
        if send.transaction is None or send.transaction in committed:
            offsets[send.place].add(offset)
    for poll, place, offset, value in history.polled_records():
        if poll.is_read_committed or transaction_of.get(value) is None:
            offsets[place].add(offset)
    return {place: sorted(numbers) for place, numbers in offsets.items()}


def lagging_readers(history: History) -> list[str]:
    """Find readers that did not reach the end after healing (invariant 12).

    A group counts as one reader, of the topics that it got records of. The last record of each
    partition must be at its end, or before markers alone where transactions end.
    """
    transactional = {send.place for send in history.sends if send.transaction is not None}
    last_records = {place: offsets[-1] for place, offsets in _record_offsets(history).items()}
    reached: dict[str, dict[Place, int]] = defaultdict(dict)
    for poll in history.polls:
        positions = reached[poll.group or poll.client]
        for place, offset, _ in poll.records:
            positions[place] = max(offset + 1, positions.get(place, 0))
    anomalies = []
    for reader, positions in reached.items():
        if reader in history.samplers:
            continue
        topics = {topic for topic, _ in positions}
        for place, log_end in history.ends.items():
            end = last_records.get(place, -1) + 1 if place in transactional else log_end
            if place[0] in topics and positions.get(place, 0) < end:
                position = positions.get(place, 0)
                anomalies.append(f"lag: {reader} is at {position} of {_at(place, end)}")
    return anomalies


def ends_gone_back(history: History) -> list[str]:
    """Find clients that got a lower end offset of a partition after a higher one (invariant 14)."""
    highest: dict[tuple[str, Place], int] = {}
    anomalies = []
    for read in sorted(history.end_offsets, key=lambda read: read.began):
        key = (read.client, read.place)
        if read.offset < highest.get(key, 0):
            anomalies.append(
                f"end offset: {read.client} got {_at(read.place, read.offset)} after {highest[key]}"
            )
        highest[key] = max(read.offset, highest.get(key, 0))
    return anomalies


def hanging_transactions(history: History) -> list[str]:
    """Find partitions whose last stable offset is not their end in the end (invariant 61)."""
    return [
        f"hanging transaction: {_at(place, stable)} is stable, the end is {history.ends[place]}"
        for place, stable in history.stable_ends.items()
        if stable != history.ends[place]
    ]


def inexact_results(history: History) -> list[str]:
    """Find source records of which not exactly one result is visible in the end (invariant 6)."""
    visible_values = {
        value for poll, _, _, value in history.polled_records() if poll.is_read_committed
    }
    results: dict[tuple[Place, int], list[bytes]] = defaultdict(list)
    topics = set()
    for send in history.sends:
        if send.source is not None:
            topics.add(send.source[0][0])
            if send.value in visible_values:
                results[send.source].append(send.value)
    sources = {
        (place, offset)
        for place, offsets in _record_offsets(history).items()
        if place[0] in topics
        for offset in offsets
    }
    return [
        f"results of {_at(*source)}: {[_text(value) for value in results[source]]}"
        for source in sorted(sources | results.keys())
        if len(results[source]) != 1
    ]


def diverged_copies(history: History) -> list[str]:
    """Find partitions of which two nodes do not have the same batches (invariant 23).

    Each copy must have all batches below the end offset, without gaps.
    """
    anomalies = []
    for place, copies in history.copies.items():
        end = history.ends.get(place, 0)
        whole = {
            node: {b.base_offset: b for b in batches if b.base_offset < end}
            for node, batches in copies.items()
        }
        for node, batches in whole.items():
            position = min(batches, default=end)
            while position in batches:
                position = batches[position].next_offset
            if position < end:
                anomalies.append(f"gap: node {node} has nothing at {_at(place, position)}")
        for offset in sorted({offset for batches in whole.values() for offset in batches}):
            by_node = {node: batches.get(offset) for node, batches in whole.items()}
            if len(set(by_node.values())) > 1:
                texts = {node: b and b.digest.hex()[:8] for node, b in by_node.items()}
                anomalies.append(f"diverged: the batches at {_at(place, offset)} are {texts}")
                break  # What follows differs as well.
    return anomalies


def diverged_views(history: History) -> list[str]:
    """Find partitions whose metadata differ between nodes in the end (invariant 49)."""
    anomalies = []
    for place in sorted({place for view in history.views.values() for place in view}):
        views = {node: view.get(place) for node, view in history.views.items()}
        if len(set(views.values())) > 1:
            anomalies.append(f"metadata of {place}: {views}")
    return anomalies


CHECKS: Final[Mapping[str, Callable[[History], list[str]]]] = {
    check.__name__: check
    for check in (
        lost_writes,
        conflicting_values,
        duplicates,
        dirty_reads,
        early_reads,
        torn_transactions,
        skipped_polls,
        nonmonotonic_polls,
        nonmonotonic_sends,
        wrong_offsets,
        offsets_gone_back,
        group_anomalies,
        share_anomalies,
        unread_commits,
        lagging_readers,
        ends_gone_back,
        hanging_transactions,
        inexact_results,
        diverged_copies,
        diverged_views,
    )
}
STUCK_BOUND: Final = 30.0
"""The seconds that a call may take past its time-out: far more than a working broker needs."""


def anomalies(history: History, bound: float = STUCK_BOUND) -> dict[str, list[str]]:
    """Run every check; return the anomalies by the check that found them."""
    anomalies_by_check = {name: check(history) for name, check in CHECKS.items()}
    anomalies_by_check["stuck_calls"] = stuck_calls(history, bound)
    return {name: texts for name, texts in anomalies_by_check.items() if texts}


def _at(place: Place, offset: int) -> str:
    topic, partition = place
    return f"{topic}-{partition}@{offset}"


def _text(value: bytes) -> str:
    return value[:40].decode("latin-1")

"""The indexes of an active segment against plain lists: every look-up, in every state.

Pieces of two entries make the entries move from memory to the files all the time.
"""

import errno
from contextlib import suppress

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kwire.log.cold_lookups import WouldWait
from kwire.log.formats import names, offset_index, time_index
from kwire.log.segments import growing_index
from kwire.log.segments.files import SegmentFiles
from kwire.log.segments.indexes import SegmentIndexes
from simulation.disk import SimDisk


class IndexModel(RuleBasedStateMachine):
    """The indexes of one segment, and their entries in two lists."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(growing_index, "PIECE_ENTRIES", 2)
        self.disk = SimDisk()
        self.disk.make_directory("t-0")
        self.indexes = SegmentIndexes(SegmentFiles(self.disk, "t-0", 0))
        self.indexes.start()
        self.offsets: list[tuple[int, int]] = []
        self.times: list[tuple[int, int]] = []

    def teardown(self) -> None:
        self.patch.undo()

    def add_entry(self, relative: int, position: int, timestamp: int) -> None:
        if self.indexes.has_surplus:
            self.indexes.spill()
        self.indexes.add(relative, position, timestamp, relative)

    @rule(gap=st.integers(1, 5), size=st.integers(1, 5), later=st.integers(-2, 3))
    def add(self, gap: int, size: int, later: int) -> None:
        last, position = self.offsets[-1] if self.offsets else (0, 0)
        largest = self.times[-1][0] if self.times else 100
        self.offsets.append((last + gap, position + size))
        if not self.times or later > 0:
            self.times.append((largest + later, last + gap))
        self.add_entry(*self.offsets[-1], largest + later)

    @rule(relative=st.integers(0, 60), behind=st.booleans())
    def truncate(self, relative: int, behind: bool) -> None:
        at = next((at for offset, at in self.offsets if offset >= relative), 1 << 20)
        position = at + 1 if behind and at < 1 << 20 else at
        self.indexes.truncate(relative, relative, position)
        self.offsets = [e for e in self.offsets if e[0] < relative and e[1] < position]
        self.times = [e for e in self.times if e[1] < relative]

    @rule(fails=st.sampled_from(["", "write", "rename", "truncate", "open", "create"]))
    def close(self, fails: str) -> None:
        """Write the files as a flush does, which may fail and be repeated; then drop them."""
        if self.indexes.offsets is None:
            return
        if fails:
            self.disk.fail_at(fails, OSError(errno.EMFILE, "refused"), path="index")
            with suppress(OSError):
                self.indexes.write()
            self.disk.mend()
            self.look_up()
        self.indexes.write()
        self.look_up()
        self.indexes.drop()
        stems = {name.name for name in self.disk.entries("t-0")}
        assert not [name for name in stems if name.endswith(names.GROWING)]

    @rule()
    def fail_to_close(self) -> None:
        """Be appended to again after a flush that failed, as after a truncation."""
        if self.indexes.offsets is not None:
            self.indexes.write()

    @rule()
    def start(self) -> None:
        """Start after a clean stop: nothing but the files is left."""
        if self.indexes.offsets is not None:
            self.indexes.write()
        self.indexes = SegmentIndexes(SegmentFiles(self.disk, "t-0", 0))

    @rule()
    def recover(self) -> None:
        """Rebuild the indexes of a segment that has files of an earlier run."""
        for entry in self.disk.entries("t-0"):
            if entry.name.endswith(names.GROWING):
                self.disk.remove(f"t-0/{entry.name}")
        self.indexes = SegmentIndexes(SegmentFiles(self.disk, "t-0", 0))
        self.indexes.start()
        times = {offset: timestamp for timestamp, offset in self.times}
        for relative, position in self.offsets:
            self.add_entry(relative, position, times.get(relative, 0))

    @rule(fails=st.sampled_from(["write", "open", "create"]))
    def spill_fails(self, fails: str) -> None:
        self.disk.fail_at(fails, OSError(errno.EMFILE, "refused"))
        self.indexes.spill()
        self.disk.mend()

    @rule(slow=st.booleans(), full=st.booleans())
    def change_disk(self, slow: bool, full: bool) -> None:
        self.disk.slow, self.disk.full = slow, full

    @invariant()
    def look_up(self) -> None:
        ascending = range(-1, 70, 3)
        # Each lookup on disk keeps the entries from the one found onwards; the last keeps the most.
        for relative in (*ascending, *reversed(ascending)):
            expected = max((e for e in self.offsets if e[0] <= relative), default=None)
            assert self.indexes.floor(relative) == expected
        for position in range(0, 70, 3):
            following = min((e for e in self.offsets if e[1] >= position), default=None)
            assert self.indexes.at_position(position) == following
        for timestamp in range(97, 140, 2):
            older = max((e for e in self.times if e[0] < timestamp), default=None)
            assert self.indexes.before(timestamp) == older
        assert self.indexes.last_timestamp() == (self.times[-1] if self.times else (-1, 0))
        offsets, times, _ = self.indexes.data()
        assert offset_index.entries(offsets, 0) == self.offsets
        assert time_index.entries(times, 0) == self.times

    @invariant()
    def cold_look_ups_need_only_what_a_thread_reads(self) -> None:
        """The part on disk, searched in a thread, has what memory does not have."""
        shadow = self.indexes.shadow(SegmentFiles(self.disk, "t-0", 0))
        self.disk.cached = False
        for relative in range(0, 70, 5):
            expected = max((e for e in self.offsets if e[0] <= relative), default=None)
            try:
                assert self.indexes.floor(relative, wait=False) == expected
            except WouldWait:
                assert shadow.floor(relative) == expected
        self.disk.cached = True


TestIndexModel = IndexModel.TestCase
TestIndexModel.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)

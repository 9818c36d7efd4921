"""The figures of a batch and of a run. Plain data only."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Final

import attrs


@attrs.frozen(kw_only=True)
class Batch:
    """The figures of one batch."""

    batch_id: int
    rows: int
    dead_letters: int
    dropped: int
    deletions: int = 0
    """Records that delete the row of their key."""
    ignored: int = 0
    """Records without a value that are configured to be ignored."""
    omitted: int = 0
    """Records of which the transform made no row; ``rows`` counts the rows that it made."""
    unmet: Mapping[str, int]
    """Rows that did not meet an expectation, by the expectation's name."""
    bytes: int
    """The total bytes of keys and values."""
    offsets: int
    lag: int | None
    """The offsets left to read; None if the brokers did not answer."""
    elapsed_s: float
    is_repeated: bool = False
    """True if an earlier run had written all or part of the batch."""

    def dump(self, table: str | None = None) -> str:
        """Return the figures as one line of JSON; ``table`` is named if there are many tables."""
        plain = ({} if table is None else {"table": table}) | attrs.asdict(self)
        plain["elapsed_s"] = round(self.elapsed_s, 3)
        return json.dumps(plain, separators=(", ", ": "))


MAX_REASONS: Final = 50
OTHER_REASONS: Final = "other reasons"


def merged_reasons(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    """Return dead letters by reason: the most common reasons, and the rest as one number.

    The number is limited because a reason may contain an unknown schema id, and damaged records can
    have any id.
    """
    counts = Counter(first) + Counter(second)
    rest = counts.pop(OTHER_REASONS, 0)
    common = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_REASONS])
    rest += counts.total() - sum(common.values())
    return {**common, OTHER_REASONS: rest} if rest else common


@attrs.define
class Tally:
    """The figures of a run."""

    batches: int = 0
    rows: int = 0
    dead_letters: int = 0
    dropped: int = 0
    deletions: int = 0
    ignored: int = 0
    omitted: int = 0
    bytes: int = 0
    offsets: int = 0
    elapsed_s: float = 0.0
    reasons: dict[str, int] = attrs.field(factory=dict)
    """The number of dead letters by reason."""
    is_stopped: bool = False
    """True if the run ended on request."""
    is_cut_short: bool = False
    """True if the run should have continued to the end of the topics, but was stopped earlier."""

    def add(self, batch: Batch, reasons: Mapping[str, int]) -> None:
        self.batches += 1
        self._add(batch, reasons)

    def merge(self, other: "Tally") -> None:
        """Add the figures of a run of another table."""
        self.batches += other.batches
        self._add(other, other.reasons)

    def _add(self, figures: "Batch | Tally", reasons: Mapping[str, int]) -> None:
        self.rows += figures.rows
        self.dead_letters += figures.dead_letters
        self.dropped += figures.dropped
        self.deletions += figures.deletions
        self.ignored += figures.ignored
        self.omitted += figures.omitted
        self.bytes += figures.bytes
        self.offsets += figures.offsets
        self.elapsed_s += figures.elapsed_s
        self.reasons = merged_reasons(self.reasons, reasons)

    def words(self) -> list[str]:
        """Return the lines of a final tally."""
        rate = self.offsets / self.elapsed_s if self.elapsed_s else 0.0
        changes = f"{self.deletions:,} deletions, " if self.deletions else ""
        ignored = f"{self.ignored:,} tombstones ignored, " if self.ignored else ""
        omitted = f"{self.omitted:,} left out by the transform, " if self.omitted else ""
        lines = [
            f"{self.rows:,} rows, {changes}{self.dead_letters:,} dead letters, "
            f"{self.dropped:,} dropped, {ignored}{omitted}in {self.batches:,} batches of "
            f"{self.offsets:,} offsets and {self.bytes:,} bytes; {self.elapsed_s:.1f} s, "
            f"{rate:,.0f} offsets/s"
        ]
        lines += [
            f"  {count:,} dead letters: {reason}"
            for reason, count in sorted(self.reasons.items(), key=lambda item: -item[1])
        ]
        return lines

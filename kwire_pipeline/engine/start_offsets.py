"""The offsets at which a run begins, determined before anything is written.

Rules of this file: it reads the brokers and the tables; `losses` decides.
"""

from collections.abc import Iterator, Mapping

import attrs

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.values import Mode
from kwire_pipeline.engine import losses, offsets
from kwire_pipeline.engine.cluster import Cluster, Topic
from kwire_pipeline.engine.identity import Begin, Facts, Identity, changed_topics
from kwire_pipeline.engine.offsets import Offsets, Range, Ranges
from kwire_pipeline.engine.shape_and_tables import origin_of
from kwire_pipeline.tables.destinations import Destinations
from kwire_pipeline.tables.table import LETTERS, Letters, Origin, ranges_of_rows


@attrs.frozen(kw_only=True)
class Beginning:
    """The state of brokers and tables at the beginning of a run."""

    pipeline: Pipeline
    cluster: Cluster
    topics: Mapping[str, Topic]
    destinations: Destinations
    stored: Identity | None
    facts: Facts
    given_up: Ranges

    def start(self, begin: Begin) -> Offsets:
        """Return the offsets of the first batch, which the identity then stores.

        Raise Refusal if records would be lost that the user has not given up.
        """
        described = list(self.topics.values())
        beginnings = self.cluster.beginnings(described)
        if begin is Begin.CONTINUE and self.stored is not None:
            return self._stored_start(self.stored, beginnings)
        chosen = self._choice(beginnings)
        if begin is Begin.ADOPT:
            return self._start_after_rows(chosen, beginnings)
        if self.pipeline.source.start.offsets is not None:
            losses.check_chosen(chosen, self.cluster.ends(described))
        start: Offsets = {t: {**p, **chosen.get(t, {})} for t, p in beginnings.items()}
        if begin is Begin.FROM_START:
            self._check_deleted(start, beginnings)
        return start

    def _stored_start(self, stored: Identity, beginnings: Offsets) -> Offsets:
        """Return the stored start, with the partitions added since it was stored.

        Spark accepts the start only if it names every partition; after the first batch, it does not
        need a start.
        """
        if stored.pending_deletion:
            self._check_deleted(stored.start, beginnings)
        if self.facts.checkpoint_batch is not None:
            return stored.start
        present = {name: stored.start[name] for name in stored.start.keys() & self.topics.keys()}
        return offsets.with_absent(present, beginnings)

    def _choice(self, beginnings: Offsets) -> Offsets:
        """Return the offsets chosen in the file, for the partitions that it names."""
        start = self.pipeline.source.start
        described = list(self.topics.values())
        if start.at_end:
            return self.cluster.ends(described)
        if start.timestamp_ms is None:
            return start.offsets or {}
        first = self.cluster.at_time(described, start.timestamp_ms)
        # At the beginning of a partition, records of that time may be missing.
        return {
            topic: {p: o for p, o in partitions.items() if o > beginnings[topic][p]}
            for topic, partitions in first.items()
        }

    def _start_after_rows(self, chosen: Offsets, beginnings: Offsets) -> Offsets:
        """Return the offsets after those in the tables."""
        stored = self.stored
        positions: Offsets = {}
        for table, _ in self._tables_with_rows():
            table_positions = table.positions()
            if table is not self.destinations.table and self.facts.lost_rows is not None:
                losses.check_ahead(table_positions, positions, table.name, self.pipeline.table.name)
            positions = offsets.later(positions, table_positions)
        resume = losses.wanted_offsets(
            beginnings,
            positions=positions,
            # The topic's end is no longer the position of the lost checkpoint.
            chosen={} if self.pipeline.source.start.at_end else chosen,
            former={} if stored is None else stored.start,
            is_same={
                name: stored is None or stored.known_topics.get(name) in (None, topic.topic_id)
                for name, topic in self.topics.items()
            },
        )
        return losses.check_skipped(resume, beginnings, self.given_up)

    def _check_deleted(self, start: Offsets, beginnings: Offsets) -> None:
        """Raise Refusal if a new start would delete rows that it does not write again."""
        rows: list[Range] = []
        for table, origin in self._tables_with_rows():
            rows += ranges_of_rows(table.read(), origin)
        unreliable = changed_topics(self.pipeline.name, self.stored, self.facts)
        if self.pipeline.table.mode is Mode.APPEND:
            policies = self.cluster.topic_settings(self.topics, "cleanup.policy")
            # A topic whose policy the brokers do not show may be compacted.
            unreliable |= {t for t in self.topics if "compact" in policies.get(t, "compact")}
        first = offsets.later(start, beginnings)
        lost = losses.unrefillable(rows, first, unreliable, self.topics)
        losses.check_deleted(lost, self.given_up)

    def _tables_with_rows(self) -> Iterator[tuple[Letters, Origin]]:
        """Yield the tables that may have rows of a pipeline, and the columns of their origin."""
        letters = self.destinations.dead_letters
        pairs: list[tuple[Letters, Origin]] = [(self.destinations.table, origin_of(self.pipeline))]
        if letters is not None:
            pairs.append((letters, LETTERS))
        for table, origin in pairs:
            if table.exists() and set(origin.spot) <= set(table.columns().names):
                yield table, origin

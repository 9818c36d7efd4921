"""The identity of a pipeline: the cluster, topics and table to which its offsets belong.

Offsets are meaningful only for the topics they were read from and the table they were written to. A
file beside the checkpoint names all of these, and the table lists the pipelines that write it. At
the start of a run, before anything is written, `decide` compares both with what it finds.

Rules of this file: plain data only. A refusal is one sentence that ends with what to do.
"""

import collections.abc
import contextlib
import enum
import json
from collections.abc import Mapping
from typing import Final, NoReturn

import attrs

from kwire_pipeline.engine import offsets
from kwire_pipeline.engine.offsets import Offsets
from kwire_pipeline.errors import Permanent, Refusal

FILE: Final = "pipeline.json"
VERSION: Final = 1
REPLACED: Final = "-replaced"
"""The id suffix of a pipeline whose table has rows of an earlier topic of the same name."""


class Intent(enum.Enum):
    """The user's answer to a refusal."""

    CONTINUE = "continue"
    ADOPT = "adopt"
    """Adopt what exists as this pipeline's, and continue after the offsets in the table."""
    FROM_START = "from-start"
    """Delete this pipeline's rows from the table, and read its topics again from the start."""


@contextlib.contextmanager
def refuse_damage() -> collections.abc.Iterator[None]:
    """Turn the errors from parsing a damaged file into a refusal."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError):
        raise Refusal(
            f"{FILE} beside the checkpoint is damaged: restore it, or remove it and run with "
            "--adopt"
        ) from None


@attrs.frozen(kw_only=True)
class Identity:
    """Everything that a pipeline's offsets belong to."""

    name: str
    pipeline_id: str
    """Created anew by each adoption or new start; the marks in tables carry it."""
    cluster_id: str
    topics: Mapping[str, str]
    """The topic ids, by topic name."""
    deleted_topics: Mapping[str, str] = attrs.field(factory=dict)
    """The ids of topics that the pipeline has read and no longer reads, by topic name.

    They were deleted, hidden by a permission, or left out of the file. Spark forgets their offsets,
    and would read such a topic from its beginning.
    """
    table: str
    table_id: str
    dead_letters: str | None
    schema: str
    """The value's schema as DDL, or empty; an inferred schema is pinned by this."""
    start: Offsets
    """The offsets of the first batch, resolved once."""
    letter_topic: str | None = None
    """The dead-letter topic; None if dead letters go to a table, or nowhere."""
    definition: str = ""
    """The hash of the definition in the last run; empty if unknown."""
    transform_hash: str = ""
    """The hash of the transform's file in the last run; empty without one, or if unknown."""
    former_id: str | None = None
    """The id that the table may still have for this pipeline; None once it has the current id."""
    pending_deletion: tuple[str, ...] = ()
    """The topics whose rows must be deleted from the tables before the first batch."""
    verify_from: Offsets | None = None
    """The first offsets that the tables should have; None if they are the offsets in ``start``.

    An adoption changes ``start`` but not ``verify_from``.
    """
    has_replaced_topic: bool = False
    """True if the table has rows of an earlier topic of the same name.

    Then a row with one of a batch's offsets does not prove that the batch is written.
    """

    @property
    def known_topics(self) -> Mapping[str, str]:
        """The ids of current and deleted topics, by name."""
        return {**self.deleted_topics, **self.topics}

    def dump(self) -> str:
        plain = attrs.asdict(self, recurse=False)
        plain["start"] = json.loads(offsets.dump(self.start))
        if self.verify_from is not None:
            plain["verify_from"] = json.loads(offsets.dump(self.verify_from))
        return json.dumps({"version": VERSION, **plain}, indent=2, sort_keys=True) + "\n"

    @classmethod
    @refuse_damage()
    def parse(cls, text: str) -> "Identity":
        """Parse the output of `dump`; raise Refusal for a file of a later version."""
        plain = json.loads(text)
        if plain.pop("version") != VERSION:
            raise Refusal(f"{FILE} was written by a later version of kwire-pipeline: run that one")
        plain["start"] = offsets.parse(json.dumps(plain["start"]))
        if plain.get("verify_from") is not None:
            plain["verify_from"] = offsets.parse(json.dumps(plain["verify_from"]))
        plain["pending_deletion"] = tuple(plain.get("pending_deletion", ()))
        return cls(**plain)


@attrs.frozen(kw_only=True)
class Facts:
    """The state of the cluster and the table at the start of a run."""

    cluster_id: str
    topics: Mapping[str, str]
    table_id: str | None
    """None if the table does not exist yet."""
    owners: Mapping[str, str]
    """The ids of the pipelines that write the table, by name."""
    has_letters: bool = False
    """True if the pipeline has dead letters; only looked up if there is no checkpoint."""
    written_topics: Mapping[str, str] = attrs.field(factory=dict)
    """The topic ids in the newest marks, by name; only looked up if there is no checkpoint."""
    other_writers: Mapping[str, str] = attrs.field(factory=dict)
    """The topics that another pipeline writes to one of the tables, each with its name.

    Only looked up for an adoption or a new start.
    """
    may_lack_topics: bool = False
    """True if a topic of the checkpoint may have been deleted since."""
    checkpoint_batch: int | None = None
    """The last batch in Spark's checkpoint of the stored identity."""
    table_batch: int | None = None
    """The last batch of the stored identity in the table or the dead letters."""
    lost_rows: int | None = None
    """A batch that the table had and no longer has; None if there is none."""
    lost_letters: int | None = None
    """The same for the dead letters."""


class Begin(enum.Enum):
    """The way in which a run begins."""

    NEW = "new"
    CONTINUE = "continue"
    ADOPT = "adopt"
    FROM_START = "from-start"


def decide(
    name: str, checkpoint: str, table: str, stored: Identity | None, facts: Facts, intent: Intent
) -> Begin:
    """Return how a run begins; raise Refusal where continuing could lose or repeat records."""
    if stored is not None:
        _check_name(name, checkpoint, stored)
    if intent is Intent.FROM_START:
        _check_new_start(name, facts)
    if intent is Intent.ADOPT and facts.table_id is not None:
        _check_adoption(name, table, stored, facts)
        return Begin.ADOPT
    if intent is Intent.FROM_START:
        return Begin.FROM_START
    if stored is None and name not in facts.owners and not facts.has_letters:
        return Begin.NEW
    if intent is Intent.ADOPT:
        raise Refusal(
            f"there is no table {table} to adopt: restore it, or correct table.name, or run with "
            f"{FROM_START}"
        )
    if stored is None and name not in facts.owners:
        raise Refusal(
            f"there are dead letters of pipeline {name}, but no checkpoint in {checkpoint} and no "
            f"rows of it in {table}: restore both, or run with {LETTERS_FROM_START}"
        )
    if stored is None:
        raise Refusal(
            f"{table} has rows of pipeline {name}, but there is no checkpoint in {checkpoint}: "
            f"restore the checkpoint, or run with {ADOPT} or {FROM_START}"
        )
    check_cluster(stored, facts.cluster_id, facts.topics, may_lack=facts.may_lack_topics)
    _check_table(name, checkpoint, table, stored, facts)
    return Begin.CONTINUE


ADOPT: Final = "--adopt (continue after the offsets in the table)"
FROM_START: Final = "--from-start (delete these rows and read the topics again)"
LETTERS_FROM_START: Final = "--from-start (delete these letters and read the topics again)"


def _check_name(name: str, checkpoint: str, stored: Identity) -> None:
    if stored.name != name:
        raise Refusal(
            f"the checkpoint {checkpoint} belongs to pipeline {stored.name}, not {name}: choose "
            "another folder for checkpoint"
        )


def _check_adoption(name: str, table: str, stored: Identity | None, facts: Facts) -> None:
    """Raise Refusal if the offsets in the table do not determine what to read next."""
    if stored is not None and stored.cluster_id != facts.cluster_id:
        _refuse_cluster(stored, facts.cluster_id)
    if stored is not None and stored.pending_deletion:
        raise Refusal(
            f"{table} has lost a part of its rows by a run with --from-start that did not end: run "
            f"without an option to continue it, or with {FROM_START}"
        )
    if facts.owners.get(name, "").endswith(REPLACED) or (
        stored is not None and stored.has_replaced_topic
    ):
        raise Refusal(
            f"{table} has rows of an earlier topic of the same name, which have the "
            f"same offsets as the rows of the present topic: run with {FROM_START}"
        )
    if facts.lost_letters is not None and facts.lost_rows is None:
        _refuse_letters(name, table, facts.lost_letters)
    for topic, other in sorted(facts.other_writers.items()):
        raise Refusal(
            f"pipeline {other} writes topic {topic} to the tables of {name} as well, so the "
            f"offsets in them do not say what {name} has written: restore the checkpoint, or "
            "choose new tables"
        )
    for topic, topic_id in sorted(facts.written_topics.items()):
        if stored is None and facts.topics.get(topic, topic_id) != topic_id:
            raise Refusal(
                f"topic {topic} was deleted and recreated since its rows were written to {table}, "
                f"so their offsets are not its own: run with {FROM_START}, or choose a new table"
            )


def _check_new_start(name: str, facts: Facts) -> None:
    """Raise Refusal if another pipeline's rows would also be deleted."""
    for topic, other in sorted(facts.other_writers.items()):
        raise Refusal(
            f"pipeline {other} writes topic {topic} to the tables of {name} as well, and its rows "
            "would be deleted with these: choose new tables"
        )


def verify_offsets(stored: Identity | None, facts: Facts, start: Offsets) -> Offsets:
    """Return the first offsets that the tables should have after an adoption at ``start``.

    A recreated topic begins at ``start``, and so does a topic whose checkpoint is lost.
    """
    if stored is None:
        return start
    former = stored.start if stored.verify_from is None else stored.verify_from
    return {
        topic: partitions
        if stored.known_topics.get(topic) != facts.topics.get(topic)
        else {p: min(o, former.get(topic, {}).get(p, o)) for p, o in partitions.items()}
        for topic, partitions in start.items()
    }


def has_replacement(stored: Identity | None, facts: Facts) -> bool:
    """Return whether a topic was recreated since the identity was written."""
    return stored is not None and any(
        stored.known_topics.get(name) not in (None, topic_id)
        for name, topic_id in facts.topics.items()
    )


def changed_topics(name: str, stored: Identity | None, facts: Facts) -> set[str]:
    """Return the topics that may differ from the topics whose records are in the tables.

    ``name`` is the pipeline's.
    """
    is_other = stored is not None and (
        stored.cluster_id != facts.cluster_id or stored.has_replaced_topic
    )
    if is_other or facts.owners.get(name, "").endswith(REPLACED):
        return set(facts.topics)
    former = facts.written_topics if stored is None else stored.topics
    return {topic for topic, id_ in facts.topics.items() if former.get(topic, id_) != id_}


def new_pipeline_id(unique: str, *, has_replaced_topic: bool) -> str:
    """Return an id for marks and the table; its suffix records that a topic was replaced."""
    return f"{unique}{REPLACED}" if has_replaced_topic else unique


def _refuse_cluster(stored: Identity, cluster_id: str) -> NoReturn:
    raise Refusal(
        f"the brokers belong to cluster {cluster_id}, and the checkpoint's offsets to cluster "
        f"{stored.cluster_id}: correct source.bootstrap, or run with {FROM_START}"
    )


def check_cluster(
    stored: Identity, cluster_id: str, topics: Mapping[str, str], *, may_lack: bool = False
) -> None:
    """Raise Refusal if the cluster or a topic does not belong to the checkpoint.

    ``topics`` maps names to topic ids. With ``may_lack``, topics may have been deleted.
    """
    if stored.cluster_id != cluster_id:
        _refuse_cluster(stored, cluster_id)
    for topic in sorted(stored.topics):
        if topic not in topics and not may_lack:
            raise Refusal(
                f"topic {topic} is no longer among the pipeline's topics: restore it, or run "
                f"with {ADOPT}; if it was deleted, a run of a pattern continues without it with "
                "--source.fail_on_data_loss false"
            )
    for topic, topic_id in sorted(stored.known_topics.items()):
        if topics.get(topic, topic_id) != topic_id:
            raise Permanent(
                f"topic {topic} was deleted and recreated, so the checkpoint's offsets are those "
                f"of the deleted topic: run with {ADOPT}, which reads the new topic from its "
                f"beginning, or {FROM_START}"
            )
    for topic in sorted(stored.deleted_topics.keys() & topics.keys()):
        raise Permanent(
            f"topic {topic} is among the pipeline's topics again, and the checkpoint has lost its "
            f"offsets, so its records would be written once more: run with {ADOPT}"
        )


def _refuse_letters(name: str, table: str, batch: int) -> NoReturn:
    raise Refusal(
        f"the dead letters of pipeline {name} lack batch {batch}, which {table} has: undo the "
        f"rollback, or roll {table} back to the same time, or run with {FROM_START}"
    )


def with_topics(stored: Identity, topics: Mapping[str, str]) -> Identity:
    """Return the identity with the current topics; topics that no longer exist are recorded."""
    return attrs.evolve(stored, topics=topics, deleted_topics=deleted_topics(stored, topics))


def deleted_topics(stored: Identity | None, topics: Mapping[str, str]) -> dict[str, str]:
    """Return the ids of the topics of an identity that are not among ``topics``, by name."""
    former = {} if stored is None else stored.known_topics
    return {name: topic_id for name, topic_id in former.items() if name not in topics}


def _check_table(name: str, checkpoint: str, table: str, stored: Identity, facts: Facts) -> None:
    owner = facts.owners.get(name)
    if stored.table != table:
        raise Refusal(
            f"the checkpoint {checkpoint} belongs to table {stored.table}, not {table}: correct "
            f"table.name, or choose another folder for checkpoint, or run with {ADOPT} or "
            f"{FROM_START}"
        )
    if facts.table_id is None:
        # A run that ended right after writing the identity has no table either.
        if facts.checkpoint_batch is not None or facts.table_batch is not None:
            raise Refusal(
                f"the table {table} no longer exists, and the checkpoint {checkpoint} continues "
                f"after its rows: restore it, or run with {FROM_START}"
            )
        return
    if facts.table_id != stored.table_id:
        raise Refusal(
            f"{table} was dropped and recreated, and the checkpoint {checkpoint} continues after "
            f"the rows of the old one: restore it, or run with {ADOPT} or {FROM_START}"
        )
    if owner not in (None, stored.pipeline_id, stored.former_id):
        raise Refusal(
            f"{table} is written by pipeline {name} with another checkpoint than {checkpoint}: "
            f"give this pipeline another name, or run with {ADOPT}"
        )
    if facts.lost_rows is not None:
        raise Refusal(
            f"{table} no longer has batch {facts.lost_rows}, after which the checkpoint "
            f"{checkpoint} continues: undo the rollback, or run with {ADOPT} or {FROM_START}"
        )
    if facts.lost_letters is not None:
        _refuse_letters(name, table, facts.lost_letters)
    if facts.table_batch is not None and facts.table_batch > (
        -1 if facts.checkpoint_batch is None else facts.checkpoint_batch
    ):
        raise Refusal(
            f"{table} has batch {facts.table_batch} of pipeline {name}, and the checkpoint "
            f"{checkpoint} is older or incomplete: restore the newest one, or run with {ADOPT} or "
            f"{FROM_START}"
        )

"""A run begins only where its offsets belong to the cluster, the topics and the table."""

import attrs
import pytest

from kwire_pipeline.engine import identity
from kwire_pipeline.engine.identity import Begin, Facts, Identity, Intent
from kwire_pipeline.errors import Permanent, Refusal

STORED = Identity(
    name="orders",
    pipeline_id="11",
    cluster_id="cluster",
    topics={"orders": "topic-id"},
    table="shop.orders",
    table_id="table-id",
    dead_letters="shop.dead",
    schema="id STRING",
    start={"orders": {0: 5, 1: 7}},
)
FACTS = Facts(
    cluster_id="cluster",
    topics={"orders": "topic-id"},
    table_id="table-id",
    owners={"orders": "11"},
    checkpoint_batch=4,
    table_batch=4,
)
LETTERS_ALONE = Facts(
    cluster_id="cluster",
    topics={"orders": "topic-id"},
    table_id=None,
    owners={},
    has_letters=True,
)


def decide(
    stored: Identity | None = STORED,
    facts: Facts = FACTS,
    intent: Intent = Intent.CONTINUE,
    table: str = "shop.orders",
    name: str = "orders",
) -> Begin:
    return identity.decide(name, "lake/checkpoint", table, stored, facts, intent)


def test_the_file_keeps_the_identity() -> None:
    assert Identity.parse(STORED.dump()) == STORED


def test_the_file_keeps_what_is_to_be_done_to_the_tables() -> None:
    """An adoption or a new start ended before the table got the new id."""
    begun = attrs.evolve(
        STORED, pipeline_id="22", former_id="11", pending_deletion=("orders", "returns")
    )
    assert Identity.parse(begun.dump()) == begun
    facts = attrs.evolve(FACTS, checkpoint_batch=None, table_batch=None)
    assert decide(begun, facts) is Begin.CONTINUE
    assert decide(begun, facts, Intent.FROM_START) is Begin.FROM_START
    with pytest.raises(Refusal, match="run without an option"):
        decide(begun, facts, Intent.ADOPT)
    with pytest.raises(Refusal, match="another checkpoint"):
        decide(attrs.evolve(begun, former_id=None), facts)


def test_a_file_of_a_later_version_is_refused() -> None:
    with pytest.raises(Refusal, match="later version"):
        Identity.parse(STORED.dump().replace('"version": 1', '"version": 2'))


def test_a_rerun_continues() -> None:
    assert decide() is Begin.CONTINUE


@pytest.mark.parametrize("stored", [STORED, None])
def test_table_with_the_same_topic_from_another_pipeline_is_not_adopted(
    stored: Identity | None,
) -> None:
    """The later of both positions would leave records of the other pipeline out."""
    facts = attrs.evolve(FACTS, other_writers={"orders": "others"})
    assert decide(facts=facts) is Begin.CONTINUE
    with pytest.raises(Refusal, match="pipeline others writes topic orders to the tables of orde"):
        decide(stored, facts, Intent.ADOPT)


@pytest.mark.parametrize("stored", [STORED, None])
def test_new_start_is_refused_where_it_would_delete_rows_of_another_pipeline(
    stored: Identity | None,
) -> None:
    facts = attrs.evolve(FACTS, other_writers={"orders": "others"})
    with pytest.raises(Refusal, match="its rows would be deleted with these: choose new tables"):
        decide(stored, facts, Intent.FROM_START)
    assert decide(stored, FACTS, Intent.FROM_START) is Begin.FROM_START


def test_first_run_begins_anew_beside_other_pipelines() -> None:
    facts = Facts(cluster_id="c", topics={}, table_id="x", owners={"other": "22"})
    assert decide(None, facts) is Begin.NEW


def test_first_run_is_refused_where_it_would_write_dead_letters_again() -> None:
    """Another pipeline may have made the table anew, or the letters are all that is left."""
    other_table = attrs.evolve(LETTERS_ALONE, table_id="x", owners={"other": "22"})
    for facts in (LETTERS_ALONE, other_table):
        with pytest.raises(Refusal, match="restore both, or run with --from-start"):
            decide(None, facts)
        assert decide(None, facts, Intent.FROM_START) is Begin.FROM_START
        assert decide(None, attrs.evolve(facts, has_letters=False)) is Begin.NEW
    with pytest.raises(Refusal, match=r"no table shop\.orders to adopt: .* --from-start"):
        decide(None, LETTERS_ALONE, Intent.ADOPT)


def test_dead_letters_alone_that_were_rolled_back_are_not_adopted() -> None:
    """The table continues after them, so an adoption would leave them out."""
    facts = attrs.evolve(FACTS, lost_letters=3)
    for intent in (Intent.CONTINUE, Intent.ADOPT):
        with pytest.raises(Refusal, match=r"lack batch 3, which shop\.orders has"):
            decide(STORED, facts, intent)
    assert decide(STORED, facts, Intent.FROM_START) is Begin.FROM_START


def test_run_that_ended_before_the_table_knew_it_continues() -> None:
    unwritten = attrs.evolve(FACTS, owners={}, checkpoint_batch=None, table_batch=None)
    assert decide(facts=unwritten) is Begin.CONTINUE
    assert decide(facts=attrs.evolve(unwritten, table_id=None)) is Begin.CONTINUE


REFUSED = {
    "checkpoint deleted": (None, FACTS, "no checkpoint in lake/checkpoint"),
    "another cluster": (STORED, attrs.evolve(FACTS, cluster_id="other"), "cluster other"),
    "topic made again": (
        STORED,
        attrs.evolve(FACTS, topics={"orders": "new"}),
        "deleted and recreated",
    ),
    "topic deleted": (STORED, attrs.evolve(FACTS, topics={}), "topic orders is no longer among"),
    "table made again": (STORED, attrs.evolve(FACTS, table_id="new"), "dropped and recreated"),
    "table deleted": (STORED, attrs.evolve(FACTS, table_id=None, owners={}), "no longer exists"),
    "second checkpoint": (STORED, attrs.evolve(FACTS, owners={"orders": "22"}), "another check"),
    "older checkpoint": (STORED, attrs.evolve(FACTS, checkpoint_batch=3), "older or incomplete"),
    "Spark's part deleted": (STORED, attrs.evolve(FACTS, checkpoint_batch=None), "older or inco"),
    "table rolled back": (STORED, attrs.evolve(FACTS, lost_rows=4), "no longer has batch 4, after"),
    "table restored by RESTORE": (
        STORED,
        attrs.evolve(FACTS, lost_rows=3, lost_letters=3),
        "shop.orders no longer has batch 3",
    ),
    "checkpoint and table deleted": (None, LETTERS_ALONE, "no checkpoint in lake/checkp"),
    "Spark's part and table deleted": (
        STORED,
        attrs.evolve(LETTERS_ALONE, table_batch=4),
        "table shop.orders no longer exists",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_could_lose_or_repeat_records_is_refused_with_the_way_out(case: str) -> None:
    stored, facts, text = REFUSED[case]
    with pytest.raises(Refusal, match=text) as refusal:
        decide(stored, facts)
    assert "--" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_another_table_or_pipeline_with_the_same_checkpoint_is_refused() -> None:
    with pytest.raises(Refusal, match=r"belongs to table shop\.orders, not shop\.other"):
        decide(table="shop.other")
    for intent in Intent:
        with pytest.raises(Refusal, match="belongs to pipeline orders, not returns"):
            decide(intent=intent, name="returns")


@pytest.mark.parametrize("case", REFUSED)
def test_each_refusal_names_the_options_that_help(case: str) -> None:
    stored, facts, _ = REFUSED[case]
    with pytest.raises(Refusal) as refusal:
        decide(stored, facts)
    if "--adopt" in str(refusal.value):
        assert decide(stored, facts, Intent.ADOPT) is Begin.ADOPT
    else:
        with pytest.raises(Refusal, match="--from-start"):
            decide(stored, facts, Intent.ADOPT)
    assert decide(stored, facts, Intent.FROM_START) is Begin.FROM_START


def test_adoption_takes_a_table_that_does_not_know_the_pipeline() -> None:
    """The pipeline was renamed, or the rows were written by other means."""
    assert decide(None, attrs.evolve(FACTS, owners={}), Intent.ADOPT) is Begin.ADOPT
    assert decide(None, attrs.evolve(FACTS, owners={}, table_id=None), Intent.ADOPT) is Begin.NEW


def test_second_adoption_after_a_topic_was_made_again_is_refused() -> None:
    """The table's greatest offset may be one of the earlier topic: rows would be lost."""
    again = attrs.evolve(FACTS, topics={"orders": "new"})
    assert identity.has_replacement(STORED, again)
    pipeline_id = identity.new_pipeline_id("22", has_replaced_topic=True)
    adopted = attrs.evolve(STORED, pipeline_id=pipeline_id, has_replaced_topic=True)
    facts = attrs.evolve(FACTS, owners={"orders": pipeline_id})
    assert decide(adopted, facts) is Begin.CONTINUE
    for stored in (adopted, None):
        with pytest.raises(Refusal, match="rows of an earlier topic"):
            decide(stored, facts, Intent.ADOPT)
        assert decide(stored, facts, Intent.FROM_START) is Begin.FROM_START


def test_topic_that_was_made_again_while_the_checkpoint_was_lost_is_not_adopted() -> None:
    """The marks of the rows have its former id; a topic of other pipelines does not matter."""
    written = {"orders": "topic-id", "returns": "id"}
    facts = attrs.evolve(FACTS, written_topics=written)
    assert decide(None, facts, Intent.ADOPT) is Begin.ADOPT
    again = attrs.evolve(facts, topics={"orders": "new"})
    with pytest.raises(Refusal, match="topic orders was deleted and recreated since its rows"):
        decide(None, again, Intent.ADOPT)
    assert decide(None, again, Intent.FROM_START) is Begin.FROM_START
    assert decide(STORED, again, Intent.ADOPT) is Begin.ADOPT  # its offsets are not used


def test_offsets_before_an_adoption_are_verified_further() -> None:
    topics = {"orders": "topic-id", "returns": "other-id"}
    stored = attrs.evolve(STORED, topics=topics, start={"orders": {0: 5}, "returns": {0: 2}})
    facts = attrs.evolve(FACTS, topics={**topics, "returns": "new-id", "late": "late-id"})
    start = {"orders": {0: 90, 1: 70}, "returns": {0: 0}, "late": {0: 4}}
    first = identity.verify_offsets(stored, facts, start)
    assert first == {"orders": {0: 5, 1: 70}, "returns": {0: 0}, "late": {0: 4}}
    adopted = attrs.evolve(stored, topics=facts.topics, start=start, verify_from=first)
    assert Identity.parse(adopted.dump()) == adopted
    again = {"orders": {0: 200, 1: 100}, "returns": {0: 8}, "late": {0: 9}}
    assert identity.verify_offsets(adopted, facts, again) == first
    assert identity.verify_offsets(None, facts, again) == again


def test_rows_of_a_changed_topic_are_not_those_of_the_present_one() -> None:
    """A new start could not write them again."""
    again = attrs.evolve(FACTS, topics={"orders": "new"})
    assert identity.changed_topics("orders", STORED, FACTS) == set()
    assert identity.changed_topics("orders", STORED, again) == {"orders"}
    other_cluster = attrs.evolve(FACTS, cluster_id="other")
    assert identity.changed_topics("orders", STORED, other_cluster) == {"orders"}
    replaced = attrs.evolve(STORED, has_replaced_topic=True)
    assert identity.changed_topics("orders", replaced, FACTS) == {"orders"}


def test_rows_of_a_changed_topic_are_known_without_a_checkpoint() -> None:
    written = attrs.evolve(FACTS, written_topics={"orders": "topic-id"})
    assert identity.changed_topics("orders", None, written) == set()
    again = attrs.evolve(written, topics={"orders": "new"})
    assert identity.changed_topics("orders", None, again) == {"orders"}
    owner = identity.new_pipeline_id("22", has_replaced_topic=True)
    replaced = attrs.evolve(written, owners={"orders": owner})
    assert identity.changed_topics("orders", None, replaced) == {"orders"}
    assert identity.changed_topics("returns", None, replaced) == set()


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "5", "{}", '{"version": 1}', '{"version": 1, "start": 5}'),
        STORED.dump().replace('"name"', '"nome"'),
        STORED.dump()[:-20],
    ],
)
def test_a_damaged_file_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(Refusal, match=r"pipeline.json beside the checkpoint is damaged: restore"):
        Identity.parse(text)


def test_pattern_goes_on_without_a_deleted_topic_if_it_may_lose_records() -> None:
    """The topic's return is noticed: its offsets are not those of the rows that are left."""
    both = {"orders": "topic-id", "returns": "other-id"}
    stored = attrs.evolve(STORED, topics=both)
    with pytest.raises(Refusal, match=r"topic returns is no longer.*--source.fail_on_data_loss"):
        decide(stored)
    facts = attrs.evolve(FACTS, may_lack_topics=True)
    assert decide(stored, facts) is Begin.CONTINUE
    current = identity.with_topics(stored, FACTS.topics)
    assert Identity.parse(current.dump()) == current
    assert (current.topics, current.deleted_topics) == (FACTS.topics, {"returns": "other-id"})
    assert decide(current) is Begin.CONTINUE
    for may_lack in (False, True):
        again = attrs.evolve(
            FACTS, topics={**FACTS.topics, "returns": "new"}, may_lack_topics=may_lack
        )
        assert identity.has_replacement(current, again)
        with pytest.raises(Refusal, match="topic returns was deleted and recreated"):
            decide(current, again)


def test_topic_that_comes_back_is_not_read_from_its_beginning() -> None:
    """It was left out of the file for a while, or a permission hid it from a pattern.

    Spark reads a topic that its last offsets lack as a new one, so its rows would be there twice.
    """
    stored = attrs.evolve(STORED, deleted_topics={"returns": "other-id"})
    both = {"orders": "topic-id", "returns": "other-id"}
    facts = attrs.evolve(FACTS, topics=both)
    with pytest.raises(Permanent, match=r"returns is among the pipeline's topics again, .*--adopt"):
        decide(stored, facts)
    assert decide(stored, facts, Intent.ADOPT) is Begin.ADOPT
    with pytest.raises(Permanent, match="returns is among the pipeline's topics again"):
        identity.check_cluster(stored, "cluster", both, may_lack=True)
    assert decide(stored) is Begin.CONTINUE
    recreated = attrs.evolve(facts, topics={**both, "returns": "a third id"})
    with pytest.raises(Permanent, match="returns was deleted and recreated"):
        decide(stored, recreated)

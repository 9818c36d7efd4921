"""Nothing is skipped and no row is deleted for good unless the user has named the offsets."""

import pytest

from kwire_pipeline.commands.run import given_up_of
from kwire_pipeline.engine import losses
from kwire_pipeline.engine.identity import Intent
from kwire_pipeline.engine.losses import NOTHING
from kwire_pipeline.engine.offsets import Offsets, Range, Ranges
from kwire_pipeline.errors import Refusal


def resume_at(
    beginnings: Offsets,
    positions: Offsets,
    *,
    chosen: Offsets | None = None,
    former: Offsets | None = None,
    is_same: bool = True,
) -> Offsets:
    return losses.wanted_offsets(
        beginnings,
        positions=positions,
        chosen=chosen or {},
        former=former or {},
        is_same=dict.fromkeys(beginnings, is_same),
    )


def test_adoption_continues_after_the_rows() -> None:
    beginnings = {"a": {0: 0, 1: 5}, "b": {0: 3}}
    offsets = resume_at(beginnings, {"a": {0: 20, 1: 10}})
    assert losses.check_skipped(offsets, beginnings, NOTHING) == {"a": {0: 20, 1: 10}, "b": {0: 3}}


def test_adoption_that_would_skip_lost_records_is_refused_until_they_are_given_up() -> None:
    """The topic's retention has passed the position of the table."""
    beginnings = {"orders": {0: 5000, 1: 0}}
    offsets = resume_at(beginnings, {"orders": {0: 1000, 1: 30}})
    for given_up in (NOTHING, Ranges.parse('{"orders":{"0":[1000,4999]}}')):
        with pytest.raises(Refusal, match="no longer have the records") as refusal:
            losses.check_skipped(offsets, beginnings, given_up)
        flag = """--adopt --give-up '{"orders":{"0":[1000,5000]}}'"""
        assert f"run with {flag}, which skips them" in str(refusal.value)
    named = given_up_of('{"orders":{"0":[1000,5000]}}', Intent.ADOPT)
    start = losses.check_skipped(offsets, beginnings, named)
    assert start == {"orders": {0: 5000, 1: 30}}


@pytest.mark.parametrize(
    ("chosen", "former", "lost"),
    [
        ({}, {}, '{"a":{"1":[0,50]}}'),
        ({"a": {1: 60}}, {}, "{}"),
        ({"a": {1: 20}}, {"a": {1: 40}}, '{"a":{"1":[20,50]}}'),
        ({}, {"a": {1: 40}}, '{"a":{"1":[40,50]}}'),
    ],
)
def test_partition_that_the_tables_lack_may_have_lost_records(
    chosen: Offsets, former: Offsets, lost: str
) -> None:
    """Spark takes a partition that is added during a run and begins above 0 in the same way."""
    beginnings = {"a": {0: 0, 1: 50}}
    offsets = resume_at(beginnings, {"a": {0: 20}}, chosen=chosen, former=former)
    start = losses.check_skipped(offsets, beginnings, Ranges.parse(lost))
    assert start["a"][0] == 20
    assert start["a"][1] == max(50, chosen.get("a", {}).get(1, 0))
    if lost != "{}":
        with pytest.raises(Refusal):
            losses.check_skipped(offsets, beginnings, NOTHING)


def test_recreated_topic_is_read_from_its_beginning() -> None:
    assert resume_at({"a": {0: 0}}, {"a": {0: 99}}, is_same=False) == {"a": {0: 0}}
    beginnings = {"a": {0: 7}}
    offsets = resume_at(beginnings, {"a": {0: 99}}, is_same=False)
    with pytest.raises(Refusal, match=r'\{"a":\{"0":\[0,7\]\}\}'):
        losses.check_skipped(offsets, beginnings, NOTHING)


ROWS = (Range("orders", 0, 10, 5000), Range("orders", 1, 0, 30))
LETTERS = (Range("orders", 0, 2, 900), Range("returns", 0, 0, 9))


def test_new_start_deletes_only_rows_that_the_topics_still_have() -> None:
    """A table of two years over a topic of seven days."""
    topics = {"orders"}
    none_lost = losses.unrefillable(ROWS, {"orders": {0: 10, 1: 0}}, (), topics)
    losses.check_deleted(none_lost, NOTHING)
    lost = losses.unrefillable((*ROWS, *LETTERS), {"orders": {0: 4000, 1: 0}}, (), topics)
    assert lost.dump() == '{"orders":{"0":[2,4000]}}'
    flag = """--from-start --give-up '{"orders":{"0":\\[2,4000\\]}}', which deletes them"""
    with pytest.raises(Refusal, match=flag):
        losses.check_deleted(lost, NOTHING)
    losses.check_deleted(lost, given_up_of(lost.dump(), Intent.FROM_START))


def test_flag_that_stays_in_the_arguments_deletes_no_later_rows() -> None:
    """Each restart of a Deployment repeats it, and the topic's beginning moves on."""
    given_up = Ranges.parse('{"orders":{"0":[0,4000]}}')
    rows = (Range("orders", 0, 4000, 9000),)
    losses.check_deleted(losses.unrefillable(rows, {"orders": {0: 4000}}, (), ["orders"]), given_up)
    lost = losses.unrefillable(rows, {"orders": {0: 6000}}, (), ["orders"])
    with pytest.raises(Refusal, match=r"\[4000,6000\]"):
        losses.check_deleted(lost, given_up)


def test_rows_of_a_topic_that_changed_are_lost_at_all_offsets() -> None:
    start = {"orders": {0: 10, 1: 0}}
    assert losses.unrefillable(ROWS, start, {"orders"}, {"orders"}) == Ranges(ROWS)
    lost = losses.unrefillable(ROWS, {"orders": {0: 0}}, (), {"orders"})
    assert lost == Ranges(ROWS[1:])  # the topic has no such partition


def test_adoption_of_a_rolled_back_table_waits_for_its_dead_letters() -> None:
    """It would continue after the dead letters, and skip the rows that were rolled back."""
    losses.check_ahead({"a": {0: 5}}, {"a": {0: 5, 1: 9}}, "dead", "rows")
    with pytest.raises(Refusal, match=r"dead has later batches .*\[5,8\]"):
        losses.check_ahead({"a": {0: 8}}, {"a": {0: 5, 1: 9}}, "dead", "rows")
    with pytest.raises(Refusal):
        losses.check_ahead({"a": {0: 8}}, {}, "dead", "rows")


def test_dead_letters_without_records_are_given_up_by_name() -> None:
    batch = Ranges.parse('{"a":{"0":[10,20],"1":[5,9]}}')
    losses.check_letters(batch, batch.ranges, NOTHING)
    readable = [Range("a", 0, 15, 20)]
    with pytest.raises(Refusal, match="lacks dead letters") as refusal:
        losses.check_letters(batch, readable, NOTHING)
    text = '{"a":{"0":[10,15],"1":[5,9]}}'
    assert f"--adopt --give-up '{text}'" in str(refusal.value)
    losses.check_letters(batch, readable, Ranges.parse(text))


@pytest.mark.parametrize("text", ["", "5", "[]", "orders", '{"a":5}', '{"a":{"0":[1]}}'])
def test_flag_with_other_text_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(Refusal, match=r'such as \{"orders":\{"0":\[100,200\]\}\}'):
        given_up_of(text, Intent.ADOPT)


def test_flag_that_nothing_uses_is_refused() -> None:
    assert given_up_of(None, Intent.CONTINUE) == NOTHING
    with pytest.raises(Refusal, match="is for --adopt and --from-start"):
        given_up_of("{}", Intent.CONTINUE)

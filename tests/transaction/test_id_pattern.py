"""The patterns of transactional ids match as RE2 would, in linear time."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwire.errors import InvalidRegularExpression
from kwire.transaction.id_pattern import parse

ATOMS = ["a", "b", "-", "é", r"\.", r"\[", ".", r"\d", r"\w", r"\s"]
CLASSES = ["[ab]", "[^a]", "[a-c1]", "[-_]", "[a-]", r"[^\d\-]", "[.^]", r"[\w é]", r"[+-\]]"]
ITEMS = st.tuples(st.sampled_from(ATOMS + CLASSES), st.sampled_from(["", "", "*", "+", "?"]))
BRANCHES = st.lists(ITEMS.map("".join), max_size=6).map("".join)
FEW_ITEMS = st.lists(ITEMS.map("".join), max_size=2).map("".join)
GROUPS = st.recursive(
    FEW_ITEMS,
    lambda inner: st.tuples(
        FEW_ITEMS,
        st.sampled_from(["(", "(?:"]),
        st.lists(inner, min_size=1, max_size=3).map("|".join),
        st.sampled_from([")", ")*", ")+", ")?"]),
        FEW_ITEMS,
    ).map("".join),
    max_leaves=4,
)
SHORT_TEXTS = st.text(alphabet="aabbc1-", max_size=4)
"""Python's matcher takes exponential time."""
ANCHORED = st.tuples(st.sampled_from(["", "^"]), BRANCHES, st.sampled_from(["", "$"]))
PATTERNS = st.lists(ANCHORED.map("".join), min_size=1, max_size=3).map("|".join)
TEXTS = st.text(alphabet="aabbc1-é.[] \n_Z", max_size=8)


@given(PATTERNS, TEXTS)
def test_pattern_matches_as_pythons_does(pattern: str, text: str) -> None:
    expected = re.fullmatch(pattern, text, re.ASCII) is not None
    assert parse(pattern).matches(text) == expected


@given(GROUPS, SHORT_TEXTS)
def test_pattern_with_groups_matches_as_pythons_does(pattern: str, text: str) -> None:
    expected = re.fullmatch(pattern, text, re.ASCII) is not None
    assert parse(pattern).matches(text) == expected


@given(st.text(alphabet=r"ab1-é.*+?|^$()[]{}\dws,", max_size=12), TEXTS)
def test_accepted_pattern_matches_as_pythons_does(pattern: str, text: str) -> None:
    try:
        accepted = parse(pattern)
    except InvalidRegularExpression:
        return
    assert accepted.matches(text) == (re.fullmatch(pattern, text, re.ASCII) is not None)


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "(a",
        "a)",
        "(?i)a",
        "(^a)",
        "(a$)",
        "(a)**",
        "a{2}",
        "*",
        "a**",
        "a*?",
        "[",
        "[]",
        "[^]",
        "[b-a]",
    ],
)
def test_pattern_outside_the_language_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpression):
        parse(pattern)


@pytest.mark.parametrize(
    "pattern", ["\\", r"\b", r"\pN", "a^b", "a$b", "[[:alpha:]]", r"[a-\d]", "]"]
)
def test_other_escapes_and_anchors_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpression):
        parse(pattern)


def test_pattern_has_at_most_256_characters() -> None:
    assert parse("a" * 256).matches("a" * 256)
    with pytest.raises(InvalidRegularExpression):
        parse("a" * 257)


def test_pattern_of_many_repetitions_is_answered() -> None:
    """Backtracking would try more ways than there are atoms in the universe."""
    pattern = parse("a*" * 127 + "b")
    assert not pattern.matches("a" * 200)
    assert pattern.matches("a" * 200 + "b")


@pytest.mark.parametrize("text", ["(" * 80 + "a" + ")*" * 80, "(a|a)*b", "(a*)*b"])
def test_pattern_of_nested_repetitions_is_answered(text: str) -> None:
    """Each state is followed once for each character of the id."""
    assert not parse(text).matches("a" * 500 + "c")


def test_ids_are_selected_by_groups() -> None:
    """The id is matched as in Apache Kafka, which compiles the pattern with RE2/J."""
    pattern = parse("(orders|payments)-(eu|us)(-[0-9]+)?")
    assert pattern.matches("orders-eu")
    assert pattern.matches("payments-us-12")
    assert not pattern.matches("orders-eu-")
    assert not pattern.matches("orders-asia")

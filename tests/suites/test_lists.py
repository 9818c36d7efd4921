"""The lists of foreign suites give for every test the expected result, or why it is left out."""

import ast
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compat_tests.harness import listing
from compat_tests.harness.listing import Listed

ROOT = Path(__file__).resolve().parents[2]
LISTS = sorted((ROOT / "compat_tests").glob("*/tests.txt"))
LISTED = [
    Listed("plain"),
    Listed("aborted", "kafka", "transactions; aborts"),
    Listed("late", "flaky", "gives itself a second"),
    Listed("secret", "excluded", "needs SSL"),
]
ALL_PASS = {"plain": True, "aborted": True, "late": True}


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.parent.name)
def test_every_list_can_be_read_and_gives_reasons(path: Path) -> None:
    listed = listing.read(path)
    assert len(listed) > 20
    assert all(entry.reason for entry in listed if entry.mark)


def test_there_is_a_list_for_each_foreign_suite() -> None:
    suites = {path.parent for path in (ROOT / "compat_tests").glob("*/run.py")}
    assert suites == {path.parent for path in LISTS}


@pytest.mark.parametrize(
    "line",
    [
        "name  excluded",
        "name  excluded:",
        "name  skipped: no idea",
        "twice\ntwice",
        "name  why not",
    ],
)
def test_line_without_mark_or_reason_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "tests.txt"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=r"not `name|listed twice"):
        listing.read(path)


def test_name_may_hold_a_hash(tmp_path: Path) -> None:
    """Go numbers the parts of a test that have one name."""
    path = tmp_path / "tests.txt"
    path.write_text("TestReader/closes#01\n# a remark\n")
    assert listing.read(path) == [Listed("TestReader/closes#01")]


def test_reason_may_hold_colons_and_brackets(tmp_path: Path) -> None:
    path = tmp_path / "tests.txt"
    path.write_text("a[b: c]  excluded: needs SSL; printed `E: no`  # a remark\n\n# another\n")
    assert listing.read(path) == [Listed("a[b: c]", "excluded", "needs SSL; printed `E: no`")]


def test_suite_is_complete_when_every_test_is_listed() -> None:
    assert listing.gaps(LISTED, [entry.name for entry in LISTED], ALL_PASS) == []


def test_test_that_is_neither_run_nor_listed_is_a_problem() -> None:
    upstream = [*(entry.name for entry in LISTED), "new"]
    assert listing.gaps(LISTED, upstream, ALL_PASS) == ["neither run nor listed: new"]


def test_part_known_only_from_a_run_must_be_listed_too() -> None:
    upstream = [entry.name for entry in LISTED]
    ran = {**ALL_PASS, "plain/part": True}
    assert listing.gaps(LISTED, upstream, ran) == ["neither run nor listed: plain/part"]
    parts = [*LISTED, Listed("plain/part"), Listed("aborted/part", "kafka", "transactions")]
    assert listing.gaps(parts, upstream, ran) == []


def test_line_that_names_no_test_is_a_problem() -> None:
    upstream = ["plain", "aborted", "late"]
    assert listing.gaps(LISTED, upstream, {}) == ["listed, but no test of the suite: secret"]


def test_expected_test_that_fails_or_does_not_run_is_a_problem() -> None:
    assert listing.failures(LISTED, "kafka", ALL_PASS) == []
    assert listing.failures(LISTED, "kwire", {"plain": False}) == [
        "failed: plain",
        "did not run: late",
    ]
    assert listing.failures(LISTED, "kafka", {**ALL_PASS, "aborted": False}) == ["failed: aborted"]


def test_counts_hold_every_listed_test_once() -> None:
    kwire = listing.tally(LISTED, "kwire", {"plain": True, "late": False})
    assert kwire == {"passed": 1, "failed": 1, "excluded": {"needs SSL": 1, "transactions": 1}}
    kafka = listing.tally(LISTED, "kafka", ALL_PASS)
    assert kafka == {"passed": 3, "failed": 0, "excluded": {"needs SSL": 1}}


def test_operation_that_no_scenario_calls_is_found(tmp_path: Path) -> None:
    creation, deletion = tmp_path / "creation.go", tmp_path / "deletion.go"
    creation.write_text("admin.CreateTopic(x)\n")
    deletion.write_text("admin.DeleteTopics(y)\n")
    operations = ["lib/Admin.CreateTopic", "lib/Admin.DeleteTopic", "lib/Admin.DeleteTopics"]
    sources = {"lib": [creation, deletion]}
    assert listing.find_uncalled(operations, sources) == ["lib/Admin.DeleteTopic"]


@pytest.fixture(scope="module")
def counts_of() -> Callable[..., dict[str, Any] | None]:
    """The function of the generator of docs/compatibility.md that looks up a suite's counts."""
    function: Callable[..., dict[str, Any] | None] = runpy.run_path(
        str(ROOT / "scripts" / "gen_compatibility.py")
    )["counts_of"]
    return function


@pytest.mark.parametrize(
    ("docstring", "row"),
    [
        (None, "session ends with its token"),
        (
            "A session is not longer than its token.\n\nMore.",
            "A session is not longer than its token",
        ),
        ("KIP-368.", "session ends with its token (KIP-368)"),
        ("Also KIP-1 and 2.", "session ends with its token (also KIP-1 and 2)"),
        ("RFC 7628: a | b.", "session ends with its token (RFC 7628: a \\| b)"),
    ],
)
def test_row_that_would_only_name_a_source_says_what_is_tested(
    docstring: str | None, row: str
) -> None:
    body = "pass" if docstring is None else repr(docstring)
    (test,) = ast.parse(f"def test_session_ends_with_its_token():\n    {body}").body
    first_line = runpy.run_path(str(ROOT / "scripts" / "gen_compatibility.py"))["first_line"]
    assert first_line(test) == row


@pytest.mark.parametrize("nodes", ["", "_3_nodes"])
def test_counts_of_a_list_that_has_changed_since_are_not_shown(
    counts_of: Callable[..., dict[str, Any] | None], nodes: str
) -> None:
    listed = listing.read(ROOT / "compat_tests" / "kafkajs" / "tests.txt")
    if nodes:
        listed = [listing.for_several(entry) for entry in listed]
    excluded: Any = listing.tally(listed, "kwire", {})["excluded"]
    passed = len(listed) - sum(excluded.values())
    counts = {"passed": passed, "failed": 0, "excluded": excluded}
    for others in (
        {"passed": passed + 1},
        {"excluded": {"another reason": len(listed) - passed}},
    ):
        results = {f"kafkajs{nodes}": {"kwire": counts, "kafka": counts | others}}
        assert counts_of(results, f"kafkajs{nodes}", "kwire") == counts
        assert counts_of(results, f"kafkajs{nodes}", "kafka") is None

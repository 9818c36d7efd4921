"""Admin requests answered as Apache Kafka 4.3.1 answered them (admin-answers.json.gz)."""

from typing import Any

from tests.support.handlers.admin_cases import CASES, frame, load, read
from tests.support.handlers.admin_node import admin_node

DIFFERENT = {
    "alter unknown operation": "Kafka fails with UNKNOWN_SERVER_ERROR and a logged traceback",
    "describe unknown kind": "the text of kwire names the kind",
}
"""Answers that differ on purpose; all but the first have Kafka's error codes."""


def codes(value: Any) -> Any:
    """Return an answer without its texts."""
    if isinstance(value, dict):
        return {key: codes(item) for key, item in value.items() if key != "errorMessage"}
    return [codes(item) for item in value] if isinstance(value, list) else value


async def answers() -> dict[str, Any]:
    """Return kwire's answer to each case, in order."""
    answers_by_case = {}
    async with admin_node(log_retention_hours="48", num_partitions="2") as node:
        requests = node.for_connection()
        for number, case in enumerate(CASES):
            parts = await requests.answer(memoryview(frame(case, number))[4:])
            assert parts is not None
            answers_by_case[case[0]] = read(case, b"".join(parts)[4:])
    return answers_by_case


async def test_admin_answers_are_kafkas() -> None:
    expected, answers_by_case = load(), await answers()
    assert list(answers_by_case) == [case[0] for case in CASES]
    different = {name for name, answer in answers_by_case.items() if answer != expected[name]}
    assert different == set(DIFFERENT)
    in_code = {name for name in different if codes(answers_by_case[name]) != codes(expected[name])}
    assert in_code == {"alter unknown operation"}

"""Admin requests answered as Apache Kafka 4.3.1 answered them (admin-answers.json.gz)."""

from typing import Any

from tests.support.handlers.admin_cases import CASES, frame, load, read
from tests.support.handlers.admin_node import admin_node

DIFFERENT = {
    "alter unknown operation": "Kafka fails with UNKNOWN_SERVER_ERROR and a logged traceback",
    "alter metrics low value": "the same judgement in the words of other settings",
    "describe unknown kind": "kwire says which kind",
}
"""Answers that differ knowingly: the codes of all but the first are Kafka's."""


def codes(value: Any) -> Any:
    """An answer without its texts."""
    if isinstance(value, dict):
        return {key: codes(one) for key, one in value.items() if key != "errorMessage"}
    return [codes(one) for one in value] if isinstance(value, list) else value


async def answers() -> dict[str, Any]:
    """Return kwire's answer to each case, in order."""
    found = {}
    async with admin_node(log_retention_hours="48", num_partitions="2") as node:
        session = node.session()
        for number, case in enumerate(CASES):
            parts = await session.answer(memoryview(frame(case, number))[4:])
            assert parts is not None
            found[case[0]] = read(case, b"".join(parts)[4:])
    return found


async def test_answers_are_kafkas() -> None:
    expected, found = load(), await answers()
    assert list(found) == [case[0] for case in CASES]
    different = {name for name, one in found.items() if one != expected[name]}
    assert different == set(DIFFERENT)
    in_code = {name for name in different if codes(found[name]) != codes(expected[name])}
    assert in_code == {"alter unknown operation"}

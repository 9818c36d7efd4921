"""Admin requests answered as Apache Kafka 4.3.1 answered them (admin-answers.json.gz)."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from kwire.errors import NONE, InvalidConfig
from tests.support.handlers.admin_cases import (
    CASES,
    LOGGER,
    Case,
    alter,
    describe,
    frame,
    load,
    read,
)
from tests.support.handlers.admin_node import admin_node

LOGGERS = ("kwire.log", "kwire.log.manager")

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


@pytest.fixture
def levels() -> Iterator[None]:
    """Restore the levels of the loggers after the test."""
    former = {name: logging.getLogger(name).level for name in (None, *LOGGERS)}
    yield
    for name, level in former.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.usefixtures("levels")
async def test_admin_answers_are_kafkas() -> None:
    expected, answers_by_case = load(), await answers()
    assert list(answers_by_case) == [case[0] for case in CASES]
    different = {name for name, answer in answers_by_case.items() if answer != expected[name]}
    assert different == set(DIFFERENT)
    in_code = {name for name in different if codes(answers_by_case[name]) != codes(expected[name])}
    assert in_code == {"alter unknown operation"}


@pytest.mark.usefixtures("levels")
async def test_levels_of_loggers_can_be_altered() -> None:
    """KIP-412: a folder's level is that of its modules, unless they have their own."""
    folder, module = LOGGERS
    async with admin_node() as node:

        async def send(case: Case) -> Any:
            parts = await node.for_connection().answer(memoryview(frame(case, 0))[4:])
            assert parts is not None
            return read(case, b"".join(parts)[4:])

        async def change(*levels: tuple[str, str | None]) -> int:
            changes = [(name, 1 if level is None else 0, level) for name, level in levels]
            (response,) = (await send(alter("levels", LOGGER, "1", *changes)))["responses"]
            assert isinstance(response["errorCode"], int)
            return response["errorCode"]

        async def levels() -> list[str]:
            answer = await send(describe("levels", LOGGER, "1", list(LOGGERS)))
            return [config["value"] for config in answer["results"][0]["configs"]]

        assert await change((folder, "ERROR")) == NONE
        assert await levels() == ["ERROR", "ERROR"]
        assert await change((module, "DEBUG")) == NONE
        assert await levels() == ["ERROR", "DEBUG"]
        assert logging.getLogger(module).isEnabledFor(logging.DEBUG)
        assert await change((folder, "WARN"), ("kwire.none", "INFO")) == InvalidConfig.code
        assert await levels() == ["ERROR", "DEBUG"]
        assert await change((folder, "WARN"), (module, None)) == NONE
        assert await levels() == ["WARN", "WARN"]

"""Many subscribers of one partition: what a record for all of them does to the others."""

from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from tests.handlers.broker import broker, one_batch
from tests.handlers.test_fetch import at, fetch, made, values
from tests.handlers.test_produce import produce

SUBSCRIBERS = 300


async def test_others_have_turns_while_a_thousand_subscribers_are_answered() -> None:
    """The producer's acknowledgement leaves first; no turn answers more than a few of them."""
    subject = broker()
    await made(subject)
    events: list[str] = []
    answers: list[Any] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.replicas.run)

        async def subscribe() -> None:
            (answer,) = await fetch(subject, at("t"), max_wait_ms=60_000)
            answers.append(values(answer))
            events.append("delivery")

        async def others() -> None:
            while len(answers) < SUBSCRIBERS:
                await trio.lowlevel.checkpoint()
                events.append("turn")

        for _ in range(SUBSCRIBERS):
            nursery.start_soon(subscribe)
        await wait_all_tasks_blocked()
        nursery.start_soon(others)
        await produce(subject, ("t", 0, one_batch(b"v")))
        events.append("acknowledgement")
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert answers == [[(0, b"v")]] * SUBSCRIBERS
    assert events.index("acknowledgement") <= 32
    between = " ".join(events).split("turn")
    assert max(part.count("delivery") for part in between) <= 32


async def test_records_that_come_while_subscribers_are_woken_are_delivered() -> None:
    subject = broker()
    await made(subject)
    last: list[int] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(subject.replicas.run)

        async def subscribe() -> None:
            offset = 0
            while offset < 5:
                (answer,) = await fetch(subject, at("t", offset), max_wait_ms=60_000)
                for offset, _ in values(answer):
                    assert offset >= 0
                offset = values(answer)[-1][0] + 1
            last.append(offset)

        for _ in range(SUBSCRIBERS):
            nursery.start_soon(subscribe)
        await wait_all_tasks_blocked()
        for number in range(5):
            await produce(subject, ("t", 0, one_batch(b"%d" % number)))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert last == [5] * SUBSCRIBERS

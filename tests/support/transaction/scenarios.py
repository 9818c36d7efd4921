"""Conversations that are recorded from Apache Kafka; topics "t" and "u" have two partitions."""

from collections.abc import Awaitable, Callable
from typing import Final

from tests.support.transaction.conversation import Conversation

Scenario = Callable[[Conversation], Awaitable[None]]

T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)


async def ends_with_epoch_bumps(say: Conversation) -> None:
    first = await say.init("a")
    await say.add("a", first, [T0, T1])
    await say.add("a", first, [U0])
    await say.add("a", first, [U0], verify=True)
    second = await say.end("a", first, commit=True)
    say.comment("the retry, the other direction, the end of no transaction")
    await say.end("a", first, commit=True)
    await say.end("a", first, commit=False)
    await say.end("a", second, commit=True)
    third = await say.end("a", second, commit=False)
    await say.end("a", second, commit=False)
    await say.end("a", second, commit=True)
    await say.end("a", first, commit=False)
    await say.add("a", second, [T0])
    await say.add("a", third, [T0])
    await say.add("a", third, [T0, T1], verify=True)
    await say.end("a", (third[0], third[1] + 1), commit=True)
    await say.end("a", third, commit=False)
    await say.add("a", third, [T0], verify=True)


async def ends_of_nothing(say: Conversation) -> None:
    first = await say.init("b")
    await say.end("b", first, commit=True)
    await say.end("b", (first[0], first[1] + 1), commit=False)
    await say.end("b", (first[0] + 100_000, 0), commit=False)
    second = await say.end("b", first, commit=False)
    await say.end("b", second, commit=False)
    await say.end("none", first, commit=False)
    await say.end("none", first, commit=False, version=4)
    await say.end("", first, commit=True)
    await say.add("none", first, [T0])
    await say.add("none", first, [T0], verify=True)
    await say.add_offsets("none", first, "group")


async def older_clients(say: Conversation) -> None:
    first = await say.init("c", version=3)
    await say.end("c", first, commit=True, version=4)
    await say.end("c", first, commit=False, version=1)
    await say.add("c", first, [T0], version=3)
    await say.add("c", first, [T0], version=3)
    await say.add("c", first, [U0, ("missing", 0)], version=3)
    await say.add("c", first, [U0, ("__consumer_offsets", 0)], version=3)
    await say.add_offsets("c", first, "group")
    await say.add("c", first, [T0, T1], verify=True)
    await say.add("c", first, [T0, T1], verify=True, version=4)
    await say.end("c", first, commit=True, version=4)
    say.comment("without a bump the retry of an end is that of the newest transaction")
    await say.end("c", first, commit=True, version=4)
    await say.end("c", first, commit=False, version=4)
    await say.add("c", first, [T1], version=0)
    await say.end("c", first, commit=False, version=3)
    await say.end("c", (first[0], first[1] + 1), commit=False, version=1)
    await say.end("c", (first[0], first[1] + 1), commit=False, version=2)
    await say.add("c", (first[0], first[1] + 1), [T1], version=1)
    await say.add("c", (first[0], first[1] + 1), [T1], version=2)
    await say.add_offsets("c", (first[0], first[1] + 1), "group", version=1)
    say.comment("the client becomes a newer one")
    await say.add("c", first, [T1])
    await say.end("c", first, commit=True)


async def new_producer_fences(say: Conversation) -> None:
    first = await say.init("d")
    second = await say.init("d")
    await say.add("d", first, [T0])
    await say.add("d", second, [T0])
    say.comment("the open transaction is aborted first")
    await say.init("d")
    third = await say.init("d")
    await say.end("d", second, commit=True)
    await say.end("d", second, commit=False)
    await say.add("d", second, [T0])
    await say.end("d", (second[0], second[1] + 1), commit=False)
    await say.init("d", producer=second)
    await say.add("d", third, [T0])
    await say.end("d", third, commit=True)


async def producer_continues_after_an_error(say: Conversation) -> None:
    first = await say.init("e")
    second = await say.init("e", producer=first)
    say.comment("a retry has the same answer")
    await say.init("e", producer=first)
    third = await say.init("e", producer=second)
    await say.init("e", producer=first)
    await say.init("e", producer=(first[0] + 100_000, 0))
    await say.init("e", version=3, producer=(first[0] + 100_000, 0))
    await say.add("e", third, [T0])
    await say.init("e", producer=third)
    await say.init("e", producer=third)
    fourth = await say.init("e")
    await say.init("e", producer=third)
    fifth = await say.end("e", fourth, commit=False)
    await say.init("e", producer=fourth)
    await say.init("e", producer=fifth)
    await say.init("new", producer=(first[0] + 100_000, 7))
    await say.init("new", producer=(5, -1))
    await say.init("", producer=None)
    await say.init("e", timeout_ms=900_001)
    await say.init("e", timeout_ms=0)
    await say.init("e", timeout_ms=900_000)


async def timeouts_abort(say: Conversation) -> None:
    first = await say.init("f", timeout_ms=300)
    await say.add("f", first, [T0])
    await say.sleep(2.0)
    await say.show("f")
    await say.add("f", first, [T0])
    await say.end("f", first, commit=True)
    await say.end("f", first, commit=False)
    old = await say.init("g", timeout_ms=300, version=3)
    await say.add("g", old, [T0], version=3)
    await say.sleep(2.0)
    await say.show("g")
    await say.end("g", old, commit=False, version=3)
    await say.add("g", old, [T0], version=3)
    await say.init("g", producer=old, version=3)
    await say.init("g", version=3)


async def listings(say: Conversation) -> None:
    first = await say.init("list-1")
    second = await say.init("list-2")
    await say.add("list-1", first, [T0])
    await say.add("list-2", second, [T0])
    await say.end("list-2", second, commit=True)
    pattern = "list-.*"
    await say.list_(transactional_id_pattern=pattern)
    await say.list_(transactional_id_pattern=pattern, state_filters=["Ongoing"])
    await say.list_(transactional_id_pattern=pattern, state_filters=["Ongoing", "Wrong"])
    await say.list_(transactional_id_pattern=pattern, state_filters=["ongoing"])
    await say.list_(transactional_id_pattern=pattern, producer_id_filters=[1 << 40])
    await say.list_(transactional_id_pattern=pattern, duration_filter=3_600_000)
    await say.list_(transactional_id_pattern="list-1")
    await say.list_(transactional_id_pattern="list")
    await say.list_(transactional_id_pattern="(")
    await say.end("list-1", first, commit=False)
    await say.list_(transactional_id_pattern=pattern)


async def epochs_are_used_up(say: Conversation) -> None:
    await say.init("h")
    last = await say.bump_to("h", 32_765)
    await say.add("h", last, [T0])
    last = await say.end("h", last, commit=True)
    await say.add("h", last, [T0])
    say.comment("the end gives the producer another id")
    rotated = await say.end("h", last, commit=True)
    await say.end("h", last, commit=True)
    await say.end("h", last, commit=False)
    await say.init("h", producer=last)
    await say.add("h", rotated, [T0])
    await say.end("h", rotated, commit=True)


async def used_up_epochs_are_replaced_at_a_start(say: Conversation) -> None:
    await say.init("i")
    last = await say.bump_to("i", 32_766)
    say.comment("the open transaction is fenced at the last epoch of all")
    await say.add("i", last, [T0])
    await say.init("i")
    await say.init("i")
    last = await say.bump_to("i", 32_766)
    rotated = await say.init("i", producer=last)
    await say.init("i", producer=last)
    await say.end("i", last, commit=False)
    await say.end("i", rotated, commit=False)


async def older_epochs_are_used_up(say: Conversation) -> None:
    await say.init("j", version=3)
    last = await say.bump_to("j", 32_766)
    await say.add("j", last, [T0], version=3)
    await say.end("j", last, commit=True, version=4)
    await say.init("j", version=3)


SCENARIOS: Final[dict[str, Scenario]] = {
    scenario.__name__: scenario
    for scenario in (
        ends_with_epoch_bumps,
        ends_of_nothing,
        older_clients,
        new_producer_fences,
        producer_continues_after_an_error,
        timeouts_abort,
        listings,
        epochs_are_used_up,
        used_up_epochs_are_replaced_at_a_start,
        older_epochs_are_used_up,
    )
}

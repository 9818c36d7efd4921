"""aiokafka clients, run by ``asyncio.run`` inside ordinary tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

DEADLINE_SECONDS = 60
RUN_SECONDS = 150


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, RUN_SECONDS))


@asynccontextmanager
async def producer(address: str, **settings: Any) -> AsyncIterator[Any]:
    client = AIOKafkaProducer(bootstrap_servers=address, **settings)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


@asynccontextmanager
async def consumer(address: str, *topics: str, **settings: Any) -> AsyncIterator[Any]:
    defaults = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    fast = {"heartbeat_interval_ms": 200, "metadata_max_age_ms": 500, "fetch_max_wait_ms": 100}
    client = AIOKafkaConsumer(
        *topics, bootstrap_servers=address, **{**defaults, **fast, **settings}
    )
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


@asynccontextmanager
async def admin(address: str) -> AsyncIterator[Any]:
    client = AIOKafkaAdminClient(bootstrap_servers=address)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def create(address: str, topic: str, partitions: int = 1, **configs: str) -> None:
    """Create a topic with three replicas if there are three brokers; aiokafka has no default."""
    named = {key.replace("_", "."): value for key, value in configs.items()}
    async with admin(address) as client:
        replicas = min(3, len((await client.describe_cluster())["brokers"]))
        await client.create_topics([NewTopic(topic, partitions, replicas, topic_configs=named)])


async def poll(client: Any, timeout_ms: int = 200) -> list[Any]:
    return [
        record
        for batch in (await client.getmany(timeout_ms=timeout_ms)).values()
        for record in batch
    ]


async def collect(client: Any, count: int) -> list[Any]:
    records: list[Any] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(records) < count:
        records += await poll(client)
        assert time.monotonic() < deadline, f"{len(records)} of {count} records"
    return records


async def eventually(check: Callable[[], Any], what: str) -> Any:
    """Call ``check``, which may be a coroutine function, until its result is true; return that."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        answer = check()
        if isinstance(answer, Coroutine):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not in time: {what}"
        await asyncio.sleep(0.02)


async def settle(members: Sequence[Any], sizes: list[int]) -> list[set[Any]]:
    def assignments_of_sizes() -> list[set[Any]]:
        got = [set(member.assignment()) for member in members]
        apart = sum(map(len, got)) == len(set().union(*got))
        return got if apart and sorted(map(len, got)) == sizes else []

    return list(await eventually(assignments_of_sizes, f"assignments of {sizes}"))

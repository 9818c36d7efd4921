"""Verbs about faults and requests, for both test brokers and the proxy."""

from collections.abc import Callable, Mapping
from typing import Protocol, cast

from kwire.errors import kafka_name
from kwire.testing.control.table import Json
from kwire.testing.errors import WrongArgument
from kwire.testing.faults import Conditions, Fault, Faults
from kwire.testing.request_log import RequestLog


class Watched(Protocol):
    """A target whose requests are recorded and may be given faults."""

    @property
    def faults(self) -> Faults: ...
    @property
    def requests(self) -> RequestLog: ...


def _show(fault: Fault) -> Json:
    return {
        "id": fault.id,
        "action": fault.action,
        "api": fault.api,
        "error": None if fault.error is None else kafka_name(fault.error),
        "seconds": fault.seconds,
        "after": fault.after,
        "topic": fault.topic,
        "partition": fault.partition,
        "group": fault.group,
        "client_id": fault.client_id,
        "node": fault.node,
        "nth": fault.nth,
        "times": fault.times,
        "matched": fault.match_count,
        "happened": fault.hit_count,
    }


async def add_fault(
    target: Watched,
    action: str,
    api: str,
    error: str = "",
    seconds: float = 0.0,
    after: bool = False,
    topic: str | None = None,
    partition: int | None = None,
    group: str | None = None,
    client_id: str | None = None,
    node: int | None = None,
    nth: int = 1,
    times: int | None = 1,
) -> Json:
    """Arrange a fault for requests of clients.

    The action is fail (with an error of Kafka, such as NOT_LEADER_OR_FOLLOWER), delay (for some
    seconds), drop (before the request's effect, or after it), cut (within the response), throttle
    (for some seconds), duplicate or corrupt (the records of Produce and Fetch). The fault applies
    to requests of the API that meet all conditions, from the nth onwards; if times is null, to all
    of these. Returns the fault with its id.
    """
    values = {
        "topic": topic,
        "partition": partition,
        "group": group,
        "client_id": client_id,
        "node": node,
    }
    conditions = cast(Conditions, {n: v for n, v in values.items() if v is not None})
    conditions["nth"], conditions["times"] = nth, times
    faults = target.faults
    add: Mapping[str, Callable[[], Fault]] = {
        "fail": lambda: faults.fail(api, error, **conditions),
        "delay": lambda: faults.delay(api, seconds, **conditions),
        "drop": lambda: faults.drop(api, after=after, **conditions),
        "cut": lambda: faults.cut(api, **conditions),
        "throttle": lambda: faults.throttle(api, seconds, **conditions),
        "duplicate": lambda: faults.duplicate(api, **conditions),
        "corrupt": lambda: faults.corrupt(api, **conditions),
    }
    if action not in add:
        raise WrongArgument(f"there is no action {action}; the actions are {', '.join(add)}")
    return _show(add[action]())


async def list_faults(target: Watched) -> Json:
    """Return all faults, including used ones, and how often each has happened."""
    return {"faults": [_show(fault) for fault in target.faults.faults]}


async def remove_fault(target: Watched, id: int) -> Json:
    """Remove one fault, whether or not it has happened; return it."""
    return _show(target.faults.remove(id))


async def clear_faults(target: Watched) -> Json:
    """Remove all faults, whether or not they have happened."""
    target.faults.clear()
    return {}


async def check_faults(target: Watched) -> Json:
    """Remove all faults; fail if one did not happen as often as wanted. Call this at the end."""
    target.faults.check()
    return {}


async def list_requests(
    target: Watched,
    api: str | None = None,
    client_id: str | None = None,
    node: int | None = None,
    since_ms: int = 0,
    limit: int = 1000,
) -> Json:
    """Return the newest requests of clients, oldest first, and the number of all that match."""
    matching = [
        request
        for request in target.requests.of(api, client_id=client_id)
        if node in (None, request.node) and request.time_ms >= since_ms
    ]
    newest = matching[max(len(matching) - limit, 0) :]
    return {"count": len(matching), "requests": [request._asdict() for request in newest]}


async def clear_requests(target: Watched) -> Json:
    """Clear the record of requests."""
    target.requests.clear()
    return {}


FAULT_VERBS = (
    add_fault,
    list_faults,
    remove_fault,
    clear_faults,
    check_faults,
    list_requests,
    clear_requests,
)

"""Random admin requests from the tables of their messages: well-formed, but seldom valid.

The same seed gives the same requests, as far as the topics' ids allow. Requests that would destroy
the cluster are left out: unregistering or moving its nodes, changing its voters, raising its
feature levels.
"""

from __future__ import annotations

from random import Random
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin

import attrs

from kwire.codec.apis import BY_KEY
from kwire.codec.schema import Attribute, Wire, fields

TOPICS: Final = (*(f"t{n}" for n in range(6)), "a.b", "a_b", "x" * 249)
ODD_NAMES: Final = ("", ".", "..", "a b", "ü", "x" * 250, "__cluster_metadata")
SETTINGS: Final = ("retention.ms", "cleanup.policy", "min.insync.replicas", "segment.bytes", "odd")
TEXTS: Final = ("1", "2", "60000", "3600000", "compact", "delete", "compact,delete", "-1", "", "x")
NUMBERS: Final = (0, 1, 2, 3, -1, -2, 7, 10_001, 2**31 - 1)
BROKERS: Final = (1, 1, 2, 3, 4, -1)
SHARED: Final = {19: 8, 20: 3, 37: 4, 44: 5, 33: 2, 43: 2, 45: 3, 46: 1, 49: 3, 48: 1, 57: 1}
"""The weight of each API, by its key, among the requests that clients send."""
NODES: Final = {56: 2, 62: 2, 63: 2, 67: 1, 70: 1, 73: 2}
"""The weight of each API, by its key, among the requests that only controllers answer."""


@attrs.define
class Source:
    """A source of random requests; ``ids`` are of topics, ``epochs`` of brokers."""

    random: Random
    ids: list[bytes] = attrs.field(factory=list)
    epochs: list[int] = attrs.field(factory=list)
    cluster_id: str = ""

    def request(self, weights: dict[int, int]) -> tuple[Any, int]:
        """Return a random request and its version."""
        api = BY_KEY[self.random.choices(list(weights), list(weights.values()))[0]]
        assert api.advertised is not None
        version = self.random.randint(*api.advertised)
        return self._request(api.request, version), version

    def _request(self, cls: type[Any], version: int) -> Any:
        present = [field for field in fields(cls) if version in field.spec.versions]
        return cls(**{field.name: self._value(cls, field, version) for field in present})

    def _value(self, cls: type[Any], field: Attribute, version: int) -> Any:
        draw = self.random
        nullable = version in field.spec.nullable
        by_default = field.default is not attrs.NOTHING and (nullable or field.default is not None)
        if by_default and draw.random() < 0.3:
            return field.default
        if nullable and draw.random() < 0.15:
            return None
        return self._of(cls, field.name, field.type, version)

    def _of(self, cls: type[Any], name: str, kind: Any, version: int) -> Any:
        inner, *marks = get_args(kind) or (kind,)
        wire = next((mark.name for mark in marks if isinstance(mark, Wire)), "struct")
        if wire == "array":
            (item,) = get_args(_not_none(inner))
            return self._array(cls, name, item, version)
        if wire == "struct":
            return self._request(_not_none(inner), version)
        return self._plain(cls, name, wire)

    def _array(self, cls: type[Any], name: str, item: Any, version: int) -> list[Any]:
        seldom = name in ("assignments", "offline_log_dirs")
        count = self.random.choice((0, 0, 0, 0, 0, 1) if seldom else (0, 1, 1, 1, 2, 3))
        items = [self._of(cls, name, item, version) for _ in range(count)]
        return items + items[:1] if items and self.random.random() < 0.1 else items

    def _plain(self, cls: type[Any], name: str, wire: str) -> Any:
        draw = self.random
        if wire == "bool":
            return draw.random() < 0.3
        if wire == "uuid":
            return draw.choice([*self.ids, bytes(16), bytes(15) + b"\7"])
        if wire == "float64":
            return draw.choice((0.0, 1.0, 1024.0, -1.0, 0.5, float("nan"), float("inf")))
        if wire == "bytes":
            return draw.randbytes(4)
        if wire == "string":
            return self._string(cls, name)
        return self._number(name, wire)

    def _string(self, cls: type[Any], name: str) -> str:
        draw = self.random
        if name == "cluster_id" and draw.random() < 0.9:
            return self.cluster_id
        if draw.random() < 0.08:
            return draw.choice(ODD_NAMES)
        if name == "name" and "Config" in cls.__name__:
            return draw.choice(SETTINGS)
        if "entity_type" in name:
            return draw.choice(("user", "client-id", "ip", "group"))
        if name == "key":
            return draw.choice(("producer_byte_rate", "consumer_byte_rate", "odd"))
        if name == "value":
            return draw.choice(TEXTS)
        if name == "feature":
            return draw.choice(("metadata.version", "group.version", "odd.version"))
        return draw.choice(TOPICS)

    def _number(self, name: str, wire: str) -> int:
        draw = self.random
        if name in ("broker_id", "broker_ids", "replicas", "controller_id"):
            return draw.choice(BROKERS)
        if name in ("resource_type", "config_operation", "election_type", "match_type"):
            return draw.choice((2, 2, 2, 4, 0, 1, 3, 8, 16, 32, -1) if "res" in name else (0, 1, 2))
        if name == "replication_factor":
            return draw.choice((1, 1, 1, 2, 3, -1, -1, 0, 7))
        if name == "timeout_ms":
            return draw.choice((30_000, 30_000, 60_000))
        if name in ("num_partitions", "count"):
            return draw.choice((1, 1, 2, 3, 5, 8, -1, 0))
        if "partition" in name:
            return draw.choice((0, 0, 1, 1, 2, 3, -1, 7))
        if name == "broker_epoch":
            return draw.choice([*self.epochs, -1])
        if name in ("min_supported_version", "security_protocol"):
            return 0
        bound = {"int8": 127, "int16": 32767, "uint16": 65535}.get(wire, 2**31 - 1)
        number = min(draw.choice(NUMBERS), bound)
        return abs(number) if wire == "uint16" else number


def _not_none(kind: Any) -> Any:
    """Return a union's type that is not None; any other type unchanged."""
    if get_origin(kind) is not UnionType:
        return kind
    return next(member for member in get_args(kind) if member is not NoneType)

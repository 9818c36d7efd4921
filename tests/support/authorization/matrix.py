"""Sends the table of requests to a broker, each from a client with its own permissions.

All clients are User:ANONYMOUS; ACLs tell them apart by the addresses from which they connect. The
administrator connects from 127.0.0.1, each attempt from an address of 127.1.0.0/16. The broker
needs the settings in ``SETTINGS`` and no ACLs.
"""

from __future__ import annotations

import json
import time
from typing import Any, Final

import attrs

from kwire.codec.apis import BY_NAME
from kwire.codec.messages.create_acls import CreateAclsRequest
from kwire.codec.messages.create_topics import CreateTopicsRequest
from kwire.codec.messages.describe_acls import DescribeAclsRequest
from kwire.codec.messages.find_coordinator import FindCoordinatorRequest
from kwire.codec.messages.init_producer_id import InitProducerIdRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.codec.messages.offset_commit import OffsetCommitRequest
from kwire.records import build
from kwire.security.acls import (
    ALL,
    ALLOW,
    ANY,
    LITERAL,
    OPERATIONS,
    RESOURCE_TYPES,
    WILDCARD,
)
from kwire.testing.wire import Closed, WireClient
from kwire.types import uuid_text
from tests.support.authorization.cases import BATCH, NOWHERE, Case
from tests.support.authorization.every_version import ALL_CASES
from tests.support.codec.message_json import from_json, to_json

SETTINGS: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "3",  # One broker cannot create it.
    "auto.create.topics.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
}
ADMINISTRATOR: Final = "127.0.0.1"
PRINCIPAL: Final = "User:ANONYMOUS"
BASE: Final = "base"
"""A topic on which every group has an offset."""
NO_ID: Final = "A" * 22
RETRIED: Final = {14, 15, 16, 51, 3, 5}
"""The errors of coordinators and leaders that are not ready yet."""
DIFFERENT: Final = {
    ("Metadata that creates a topic", "allowed"): "kwire waits for the creation",
    ("Metadata that creates a topic in the cluster", "allowed"): "kwire waits for the creation",
    ("ShareFetch", "allowed"): "kwire waits for the state, whose topic cannot be created",
}
"""Attempts that kwire answers otherwise than Kafka, with the reason."""
SHOWN: Final = {
    "clusterAuthorizedOperations",
    "authorizedOperations",
    "topicAuthorizedOperations",
    "errorCode",
    "partitionErrorCode",
    "topicConfigErrorCode",
    "name",
    "topic",
    "topicName",
    "topicId",
    "groupId",
    "group",
    "transactionalId",
    "key",
    "resourceName",
    "resourceType",
}
"""The fields of responses that the comparison sees: codes, names and operations."""
LEFT_OUT: Final = {"configs", "brokers", "nodes", "finalizedFeatures", "supportedFeatures"}
"""Lists in responses that do not depend on permissions."""


@attrs.frozen
class Attempt:
    """One case with some of its permissions, and its own names and address."""

    case: Case
    lacks: str
    needs: tuple[str, ...]
    number: int

    @property
    def host(self) -> str:
        high, low = divmod(self.number, 250)
        return f"127.1.{high}.{low + 1}"

    @property
    def names(self) -> dict[str, str]:
        """The names of this attempt, by the placeholder's letter."""
        return {letter: f"{letter.lower()}-{self.number}-" for letter in "TAGX"}

    def mentions(self, letter: str) -> bool:
        return "{" + letter + "}" in json.dumps(self.case.body) + " ".join(self.case.needs)


def attempts() -> list[Attempt]:
    """Return all attempts, numbered."""
    numbered: list[Attempt] = []
    for case in ALL_CASES:
        for lacks, needs in case.attempts():
            numbered.append(Attempt(case, lacks, needs, len(numbered)))
    return numbered


@attrs.define
class Matrix:
    """A broker under test, at its ports on this machine."""

    port: int
    controller_port: int
    topic_ids: dict[str, str] = attrs.field(factory=dict)

    def answers(self) -> dict[str, dict[str, Any]]:
        """Prepare the broker; return the answer to each attempt, by case and missing permission."""
        with WireClient("127.0.0.1", self.port, source=ADMINISTRATOR) as admin:
            self._prepare(admin)
        answers: dict[str, dict[str, Any]] = {}
        for attempt in attempts():
            answers.setdefault(attempt.case.name, {})[attempt.lacks] = self._answer(attempt)
        return answers

    # Preparations ---------------------------------------------------------------------------
    def _prepare(self, admin: WireClient) -> None:
        self._create_acls(admin, [_acl(kind, WILDCARD, "All", "127.0.0.1") for kind in _KINDS])
        every = attempts()
        names = [BASE, *(a.names["T"] for a in every if a.mentions("T") or a.mentions("ID"))]
        for start in range(0, len(names), 50):
            self._create_topics(admin, names[start : start + 50])
        self._prepare_coordinators(admin, every)
        grants = [
            _acl(kind, self._fill(name, attempt), operation, attempt.host)
            for attempt in every
            for operation, kind, name in (need.split(" ", 2) for need in attempt.needs)
        ]
        self._create_acls(admin, grants)

    def _create_topics(self, admin: WireClient, names: list[str]) -> None:
        topics = [
            CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            for name in names
        ]
        created = admin.call(CreateTopicsRequest(topics=topics, timeout_ms=30_000), 7)
        assert not any(topic.error_code for topic in created.topics), created
        self.topic_ids |= {topic.name: uuid_text(topic.topic_id) for topic in created.topics}
        requested = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        _until_ready(
            lambda: (
                topic.error_code or max((p.error_code for p in topic.partitions), default=0)
                for topic in admin.call(MetadataRequest(topics=requested), 9).topics
            )
        )

    def _prepare_coordinators(self, admin: WireClient, every: list[Attempt]) -> None:
        """Create the groups and transactional ids, whose coordinators are then loaded."""
        for kind in (0, 1):
            find = FindCoordinatorRequest(key_type=kind, coordinator_keys=["n"])
            _until_ready(lambda find=find: (c.error_code for c in admin.call(find, 6).coordinators))
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(
            name=BASE,
            partitions=[
                OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
                    partition_index=0, committed_offset=0, committed_metadata=""
                )
            ],
        )
        for attempt in every:
            if attempt.mentions("G"):
                commit = OffsetCommitRequest(
                    group_id=attempt.names["G"], member_id="", topics=[topic]
                )
                _until_ready(
                    lambda commit=commit: (
                        p.error_code for t in admin.call(commit, 9).topics for p in t.partitions
                    )
                )
            if attempt.mentions("X"):
                init = InitProducerIdRequest(
                    transactional_id=attempt.names["X"], transaction_timeout_ms=60_000
                )
                _until_ready(lambda init=init: (admin.call(init, 5).error_code,))

    def _create_acls(self, admin: WireClient, acls: list[CreateAclsRequest.AclCreation]) -> None:
        """Create ACLs and wait until broker and controller know them."""
        created = admin.call(CreateAclsRequest(creations=acls), 3)
        assert not any(result.error_code for result in created.results), created
        everything = DescribeAclsRequest(
            resource_type_filter=ANY,
            resource_name_filter=None,
            pattern_type_filter=ANY,
            principal_filter=None,
            host_filter=acls[-1].host,
            operation=ANY,
            permission_type=ANY,
        )
        expected = len({str(acl) for acl in acls if acl.host == acls[-1].host})
        for port in (self.port, self.controller_port):
            with WireClient("127.0.0.1", port, source=ADMINISTRATOR) as client:
                while True:
                    resources = client.call(everything, 3).resources
                    if sum(len(resource.acls) for resource in resources) == expected:
                        break
                    time.sleep(0.05)

    # Attempts -------------------------------------------------------------------------------
    def _answer(self, attempt: Attempt) -> Any:
        """Send the request of an attempt; return what its response shows."""
        case = attempt.case
        api = BY_NAME[case.api]
        body = json.loads(self._fill(json.dumps(case.body), attempt))
        request = from_json(api.request, _with_batches(body), case.version)
        port = self.controller_port if case.listener == "controller" else self.port
        with WireClient("127.0.0.1", port, source=attempt.host) as client:
            try:
                response = client.call(request, case.version)
            except Closed:
                return "closed"
            return self._comparable(to_json(response, case.version), attempt)

    def _fill(self, text: str, attempt: Attempt) -> str:
        names = attempt.names
        names["ID"] = self.topic_ids.get(names["T"], "")
        for letter, name in names.items():
            text = text.replace("{" + letter + "}", name)
        return text

    def _comparable(self, value: Any, attempt: Attempt) -> Any:
        """Return the shown fields; names become placeholders, and those of others are left out."""
        if isinstance(value, list):
            items = [item for item in value if isinstance(item, dict)]
            shown = [self._comparable(item, attempt) for item in items]
            return sorted((item for item in shown if item), key=json.dumps)
        assert isinstance(value, dict)
        out = {}
        for name, item in value.items():
            if isinstance(item, list | dict):
                if name not in LEFT_OUT and (inner := self._comparable(item, attempt)):
                    out[name] = inner
            elif name in SHOWN:
                shown = self._placeholder(name, item, attempt)
                if shown is None and item is not None:
                    return {}  # An element about another attempt.
                out[name] = shown
        return out

    def _placeholder(self, field: str, value: Any, attempt: Attempt) -> Any:
        if not isinstance(value, str):
            return value
        if field == "topicId":
            name = next((n for n, i in self.topic_ids.items() if i == value), None)
            if name is None:
                return value if value in (NOWHERE, NO_ID) else "{NEW}"
            return "{ID}" if name == attempt.names["T"] else None
        for letter, name in attempt.names.items():
            if value == name:
                return "{" + letter + "}"
        is_other = value[:2] in ("t-", "a-", "g-", "x-") and value.endswith("-")
        return None if is_other or value.startswith("__") else value


_KINDS: Final = ("Topic", "Group", "Cluster", "TransactionalId")


def _acl(kind: str, name: str, operation: str, host: str) -> CreateAclsRequest.AclCreation:
    return CreateAclsRequest.AclCreation(
        resource_type=RESOURCE_TYPES[kind],
        resource_name="kafka-cluster" if kind == "Cluster" else name,
        resource_pattern_type=LITERAL,
        principal=PRINCIPAL,
        host=host,
        operation=ALL if operation == "All" else OPERATIONS[operation],
        permission_type=ALLOW,
    )


def _until_ready(codes: Any) -> None:
    """Repeat a request until none of its error codes asks for that; it must then succeed."""
    deadline = time.monotonic() + 60
    while True:
        result: list[int] = list(codes())
        if not any(code in RETRIED for code in result):
            assert not any(result), result
            return
        assert time.monotonic() < deadline, result
        time.sleep(0.05)


def _with_batches(value: Any) -> Any:
    """Replace the placeholders of batches with the batches, in the JSON form of bytes."""
    from base64 import b64encode

    if isinstance(value, list):
        return [_with_batches(item) for item in value]
    if isinstance(value, dict):
        return {name: _with_batches(item) for name, item in value.items()}
    if isinstance(value, str) and value.startswith(BATCH[:-1]):
        kind = value[len(BATCH) - 1 : -1].strip()
        batch = build.batch(
            [build.New(b"k", b"v")],
            timestamp_ms=1_700_000_000_000,
            leader_epoch=-1,
            producer_id=77 if kind else -1,
            producer_epoch=0 if kind else -1,
            base_sequence=0 if kind else -1,
            transactional=kind == "transactional",
        )
        return b64encode(batch).decode()
    return value

"""Client quotas: their entities and limits."""

import pytest

from kwire import errors
from kwire.codec.messages.alter_client_quotas import AlterClientQuotasRequest
from kwire.raftmeta.controller.client_quotas import decide_alter_quotas
from tests.support.raftmeta.clusters import Cluster

Entry = AlterClientQuotasRequest.EntryData
GOOD = ("producer_byte_rate", 1.0)


@pytest.mark.parametrize(
    ("entity", "quota", "accepted"),
    [
        ([("user", "ann")], GOOD, True),
        ([("user", None), ("client-id", "c")], GOOD, True),
        ([], GOOD, False),
        ([("user", "")], GOOD, False),
        ([("user", "ann"), ("user", "bob")], GOOD, True),  # bob's
        ([("ip", "10.0.0.1")], ("connection_creation_rate", 5.0), True),
        ([("ip", "::1")], ("connection_creation_rate", 5.0), True),
        ([("ip", None)], ("connection_creation_rate", 5.0), True),
        ([("ip", "no address at all")], ("connection_creation_rate", 5.0), False),
        ([("ip", "host1.example")], ("connection_creation_rate", 5.0), True),
        ([("ip", "127.1")], ("connection_creation_rate", 5.0), True),
        ([("ip", "256.1.1.1")], ("connection_creation_rate", 5.0), False),
        ([("ip", "1.2.3.4.5")], ("connection_creation_rate", 5.0), False),
        ([("ip", "0x7f.1")], ("connection_creation_rate", 5.0), False),
        ([("ip", "1.2.65535")], ("connection_creation_rate", 5.0), True),
        ([("ip", "1.2.65536")], ("connection_creation_rate", 5.0), False),
        ([("ip", "4294967296")], ("connection_creation_rate", 5.0), False),
        ([("ip", "10.0.0.1"), ("user", "ann")], ("connection_creation_rate", 5.0), False),
        ([("ip", "10.0.0.1")], GOOD, False),
        ([("user", "ann")], ("request_percentage", 12.5), True),
        ([("user", "ann")], ("producer_byte_rate", 12.5), False),
        ([("user", "ann")], ("producer_byte_rate", 1000.000_002), False),
        ([("user", "ann")], ("producer_byte_rate", 1000.000_000_5), True),  # rounded off
        ([("user", "ann")], ("producer_byte_rate", 0.0), False),
        ([("user", "ann")], ("producer_byte_rate", float("nan")), False),
        ([("user", "ann")], ("producer_byte_rate", 1e19), False),
        ([("ip", None)], ("connection_creation_rate", 2.0**31), False),
    ],
)
def test_invalid_quotas_are_refused(
    entity: list[tuple[str, str | None]], quota: tuple[str, float], accepted: bool
) -> None:
    cluster = Cluster()
    parts = [Entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
    ops = [Entry.OpData(key=quota[0], value=quota[1], remove=False)]
    request = AlterClientQuotasRequest(entries=[Entry(entity=parts, ops=ops)], validate_only=False)
    code = cluster.do(decide_alter_quotas, request).entries[0].error_code
    assert code == (0 if accepted else errors.InvalidRequest.code)
    assert cluster.kinds() == (["ClientQuota"] if accepted else [])
    again = cluster.do(decide_alter_quotas, request).entries[0].error_code
    assert (again, cluster.kinds()) == (code, []), "a repetition changes nothing"

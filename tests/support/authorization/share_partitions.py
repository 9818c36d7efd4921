"""The table's requests of members of share groups, for partitions that they fetch from."""

from typing import Any, Final

from tests.support.authorization.cases import Case, Json


def _request(**fields: Any) -> Json:
    topics = [{"topicId": "{ID}", "partitions": [{"partitionIndex": 0}]}]
    return {"groupId": "{G}", "memberId": "member", "topics": topics} | fields


SHARES: Final = (
    Case(
        "ShareFetch", "ShareFetch", 2,
        _request(shareSessionEpoch=0, maxWaitMs=0, minBytes=0, maxRecords=1, batchSize=1),
        ("Read Group {G}", "Read Topic {T}"),
    ),
    Case(
        "ShareAcknowledge", "ShareAcknowledge", 2,
        _request(shareSessionEpoch=-1, isRenewAck=False), ("Read Group {G}",),
    ),
)  # fmt: skip

"""The table's requests about share groups and their offsets."""

from typing import Final

from tests.support.authorization.cases import Case

SHARE_GROUPS: Final = (
    Case("ShareGroupHeartbeat", "ShareGroupHeartbeat", 1,
         {"groupId": "{G}", "memberId": "unknown", "memberEpoch": 7,
          "subscribedTopicNames": ["{T}", "{A}"]},
         ("Read Group {G}", "Describe Topic {T}", "Describe Topic {A}")),
    Case("ShareGroupDescribe", "ShareGroupDescribe", 1,
         {"groupIds": ["{G}"], "includeAuthorizedOperations": True},
         ("Describe Group {G}", "Delete Group {G}")),
    Case("DescribeShareGroupOffsets", "DescribeShareGroupOffsets", 1,
         {"groups": [{"groupId": "{G}", "topics": [{"topicName": "{T}", "partitions": [0]}]}]},
         ("Describe Group {G}", "Describe Topic {T}")),
    Case("AlterShareGroupOffsets", "AlterShareGroupOffsets", 0,
         {"groupId": "{G}", "topics": [{"topicName": "{T}", "partitions": [
             {"partitionIndex": 0, "startOffset": 0}]}]},
         ("Read Group {G}", "Read Topic {T}")),
    Case("DeleteShareGroupOffsets", "DeleteShareGroupOffsets", 0,
         {"groupId": "{G}", "topics": [{"topicName": "{T}"}]},
         ("Delete Group {G}", "Read Topic {T}")),
)  # fmt: skip

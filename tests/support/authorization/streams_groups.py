"""The table's requests about streams groups."""

from typing import Final

from tests.support.authorization.cases import Case

STREAMS_GROUPS: Final = (
    Case("StreamsGroupHeartbeat", "StreamsGroupHeartbeat", 0,
         {"groupId": "{G}", "memberId": "unknown", "memberEpoch": 7,
          "endpointInformationEpoch": -1, "instanceId": None, "rackId": None,
          "rebalanceTimeoutMs": 60000,
          "topology": {"epoch": 0, "subtopologies": [
              {"subtopologyId": "0", "sourceTopics": ["{T}"], "sourceTopicRegex": [],
               "stateChangelogTopics": [], "repartitionSinkTopics": ["{A}"],
               "repartitionSourceTopics": [], "copartitionGroups": []}]},
          "activeTasks": [], "standbyTasks": [], "warmupTasks": [],
          "processId": "process", "userEndpoint": None, "clientTags": [],
          "taskOffsets": None, "taskEndOffsets": None, "shutdownApplication": False},
         ("Read Group {G}", "Describe Topic {T}", "Describe Topic {A}")),
    Case("StreamsGroupDescribe", "StreamsGroupDescribe", 0,
         {"groupIds": ["{G}"], "includeAuthorizedOperations": True},
         ("Describe Group {G}",)),
)  # fmt: skip

"""ElectLeaders (API key 43): preferred or unclean elections, by default for all partitions."""

from kwire.codec.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from kwire.errors import KafkaError
from kwire.handlers.shared.context import CLUSTER, Context
from kwire.handlers.shared.handler import handles
from kwire.raftmeta.controller.partitions import decide_elect_leaders

Topic = ElectLeadersResponse.ReplicaElectionResult


def refuse(request: ElectLeadersRequest, error: KafkaError) -> ElectLeadersResponse:
    results = [
        Topic(
            topic=topic.topic,
            partition_result=[
                Topic.PartitionResult(
                    partition_id=index, error_code=error.code, error_message=error.text
                )
                for index in topic.partitions
            ],
        )
        for topic in request.topic_partitions or ()
    ]
    return ElectLeadersResponse(error_code=error.code, replica_election_results=results)


@handles(ElectLeadersRequest, refuse=refuse)
async def elect_leaders(context: Context, request: ElectLeadersRequest) -> ElectLeadersResponse:
    context.check_allowed("Alter", "Cluster", CLUSTER)
    return await context.decide(decide_elect_leaders, request)

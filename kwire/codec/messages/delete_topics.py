"""DeleteTopics (API key 20): its request and its response."""

from kwire.codec.schema import (
    Array,
    Int16,
    Int32,
    NullableString,
    Request,
    String,
    Uuid,
    field,
    message,
    struct,
)
from kwire.errors import InvalidRequest, TopicDeletionDisabled
from kwire.types import ZERO_UUID


@message(api_key=20, versions="1-6", flexible="4+")
class DeleteTopicsRequest(Request["DeleteTopicsResponse"]):
    @struct
    class DeleteTopicState:
        name: NullableString = field("6+", default=None, nullable="6+")
        topic_id: Uuid = field("6+", default=ZERO_UUID)

    topics: Array[DeleteTopicState] = field("6+", factory=list)
    topic_names: Array[String] = field("0-5", factory=list, ignorable=True)
    timeout_ms: Int32 = field("0+")


@message(api_key=20, versions="1-6", flexible="4+")
class DeleteTopicsResponse:
    throttle_time_ms: Int32 = field("1+", default=0, ignorable=True)

    @struct
    class DeletableTopicResult:
        name: NullableString = field("0+", nullable="6+")
        topic_id: Uuid = field("6+", default=ZERO_UUID, ignorable=True)
        error_code: Int16 = field("0+", default=0)
        error_message: NullableString = field("5+", default=None, nullable="5+", ignorable=True)

    responses: Array[DeletableTopicResult] = field("0+", factory=list)


def widen_request(request: DeleteTopicsRequest, version: int) -> DeleteTopicsRequest:
    """Turn the list of names of old versions into a list of topics."""
    if version < 6:
        states = [DeleteTopicsRequest.DeleteTopicState(name=name) for name in request.topic_names]
        request.topics, request.topic_names = states, []
    return request


def narrow_response(
    response: DeleteTopicsResponse, version: int, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    """Replace TopicDeletionDisabled before version 3."""
    if version < 3:
        for result in response.responses:
            if result.error_code == TopicDeletionDisabled.code:
                result.error_code = InvalidRequest.code
    return response

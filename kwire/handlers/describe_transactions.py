"""DescribeTransactions (API key 65): the state of transactional ids; each id fails alone."""

from kwire.codec.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from kwire.drive import Slices
from kwire.errors import InvalidRequest, KafkaError
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.transaction.model import Transaction

State = DescribeTransactionsResponse.TransactionState


def _refuse_id(transactional_id: str, error: KafkaError) -> State:
    return State(
        error_code=error.code,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=0,
        producer_epoch=0,
    )


def refuse(request: DescribeTransactionsRequest, error: KafkaError) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[_refuse_id(name, error) for name in request.transactional_ids]
    )


@handles(DescribeTransactionsRequest, refuse=refuse)
async def describe_transactions(
    context: Context, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    response = DescribeTransactionsResponse()
    slices = Slices()
    for transactional_id in request.transactional_ids:
        response.transaction_states.append(await _describe(context, transactional_id))
        await slices.pause()
    return response


async def _describe(context: Context, transactional_id: str) -> State:
    try:
        context.check_allowed("Describe", "TransactionalId", transactional_id)
        if not transactional_id:
            raise InvalidRequest
        return await _state(context, await context.transactions.describe(transactional_id))
    except KafkaError as error:
        return _refuse_id(transactional_id, error)


async def _state(context: Context, transaction: Transaction) -> State:
    topics: dict[str, State.TopicData] = {}
    slices = Slices()
    for topic, index in sorted(transaction.partitions):
        if context.is_allowed("Describe", "Topic", topic):
            topics.setdefault(topic, State.TopicData(topic=topic)).partitions.append(index)
        await slices.pause()
    return State(
        transactional_id=transaction.transactional_id,
        transaction_state=transaction.state.title,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.start_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=list(topics.values()),
    )

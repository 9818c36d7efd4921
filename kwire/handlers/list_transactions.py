"""ListTransactions (API key 66): the transactional ids this node coordinates, by several filters.

The pattern of version 2 is matched by Python's regular expressions. A pattern that repeats what is
itself repeated is refused: it could take as long as it likes, where Kafka's RE2 does not.
"""

import re
from collections.abc import Callable
from typing import Final

from kwire.codec.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from kwire.errors import InvalidRegularExpression
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.transaction.model import BY_TITLE, Transaction

_REPEATED_REPEAT: Final = re.compile(r"[*+}]\??\)+(?:[*+]|\{\d+,)")


@handles(ListTransactionsRequest)
async def list_transactions(
    context: Context, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    is_listed = _filter(request, context.clock.now_ms())
    transactions = await context.transactions.list_transactions(is_listed)
    return ListTransactionsResponse(
        unknown_state_filters=[name for name in request.state_filters if name not in BY_TITLE],
        transaction_states=[
            ListTransactionsResponse.TransactionState(
                transactional_id=transaction.transactional_id,
                producer_id=transaction.producer_id,
                transaction_state=transaction.state.title,
            )
            for transaction in transactions
            if context.is_allowed("Describe", "TransactionalId", transaction.transactional_id)
        ],
    )


def _filter(request: ListTransactionsRequest, now_ms: int) -> Callable[[Transaction], bool]:
    """Return the function that applies all filters; an empty one accepts everything."""
    pattern = _pattern(request.transactional_id_pattern)
    producer_ids = frozenset(request.producer_id_filters)
    states = frozenset(request.state_filters)
    duration_ms = request.duration_filter

    def is_listed(transaction: Transaction) -> bool:
        return (
            (not producer_ids or transaction.producer_id in producer_ids)
            and (not states or transaction.state.title in states)
            and (duration_ms < 0 or now_ms - transaction.start_ms > duration_ms)
            and (pattern is None or pattern.fullmatch(transaction.transactional_id) is not None)
        )

    return is_listed


def _pattern(text: str | None) -> re.Pattern[str] | None:
    if not text:
        return None
    try:
        pattern = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidRegularExpression(str(error)) from error
    if _REPEATED_REPEAT.search(text):
        raise InvalidRegularExpression("a repeated group that contains a repetition")
    return pattern

"""ListTransactions (API key 66): the transactional ids that this node coordinates, filtered."""

from collections.abc import Callable

from kwire.codec.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from kwire.drive import Slices
from kwire.handlers.shared.context import Context
from kwire.handlers.shared.handler import handles
from kwire.transaction.id_pattern import parse
from kwire.transaction.model import BY_TITLE, Transaction


@handles(ListTransactionsRequest)
async def list_transactions(
    context: Context, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    is_listed = _filter(request, context.clock.now_ms())
    transactions = await context.transactions.list_transactions(is_listed)
    states = []
    slices = Slices(context.clock.now)
    for transaction in transactions:
        await slices.pause()
        if context.is_allowed("Describe", "TransactionalId", transaction.transactional_id):
            states.append(
                ListTransactionsResponse.TransactionState(
                    transactional_id=transaction.transactional_id,
                    producer_id=transaction.producer_id,
                    transaction_state=transaction.state.title,
                )
            )
    return ListTransactionsResponse(
        unknown_state_filters=[name for name in request.state_filters if name not in BY_TITLE],
        transaction_states=states,
    )


def _filter(request: ListTransactionsRequest, now_ms: int) -> Callable[[Transaction], bool]:
    """Return a function that applies all filters; an empty filter accepts everything."""
    text = request.transactional_id_pattern
    pattern = parse(text) if text else None
    producer_ids = frozenset(request.producer_id_filters)
    states = frozenset(request.state_filters)
    duration_ms = request.duration_filter

    def is_listed(transaction: Transaction) -> bool:
        return (
            (not producer_ids or transaction.producer_id in producer_ids)
            and (not states or transaction.state.title in states)
            and (duration_ms < 0 or now_ms - transaction.start_ms > duration_ms)
            and (pattern is None or pattern.matches(transaction.transactional_id))
        )

    return is_listed

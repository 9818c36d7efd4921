"""The steps after a load of a coordinator with many open transactions."""

from kwire.coordinator.decision import Moment
from kwire.transaction.model import Transaction, TransactionState
from kwire.transaction.records import record_of
from kwire.transaction.shard import TransactionShard

OPEN = 2_500


def transaction(number: int) -> Transaction:
    return Transaction(
        transactional_id=f"id-{number}",
        producer_id=number,
        producer_epoch=0,
        timeout_ms=30_000,
        state=TransactionState.ONGOING,
        start_ms=1_000,
        update_ms=1_000,
        client_version=2,
    )


def test_deadlines_are_set_in_steps_of_at_most_a_thousand() -> None:
    """Invariant 107."""
    shard = TransactionShard()
    for number in range(OPEN):
        shard.apply(record_of(transaction(number), 2))
    counts = []
    for step in shard.on_loaded():
        decision = step(Moment(now=5.0, wall_ms=11_000))
        counts.append(len(decision.state.deadlines) if decision.state else 0)
        shard.adopt(decision.state)
    assert counts == [1_000, 1_000, 500, 0]
    assert set(shard.ongoing.values()) == {5.0 + 20.0}

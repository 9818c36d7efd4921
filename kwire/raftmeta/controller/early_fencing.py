"""The fencing of a broker whose process has ended, before its session does.

A session bounds how long a broker may be silent; a process that has ended says nothing any more.
Fencing is always safe: leader epochs protect what acks=all has acknowledged, and a broker that was
fenced wrongly is unfenced by its next heartbeat, which it sends at once. Limits
(docs/decisions/0020-early-fencing.md):

* A heartbeat after the first refusal disproves it.
* At most half of the serving brokers are fenced early; the others wait for their sessions. If that
  many seem to have ended, this node's view of the network is the likelier cause. A new active
  controller counts those that it finds fenced and silent, for one session.
* Until the session ends too, the partitions that only the broker had in sync get no unclean leader.
"""

from kwire.raftmeta.controller.brokers import fencing
from kwire.raftmeta.controller.process_probe import EndedProcess
from kwire.raftmeta.controller.state import ControllerState, Decision


def decide_fence_ended(state: ControllerState, request: EndedProcess, now: float) -> Decision[bool]:
    """Fence a broker whose process has ended; the reply says whether it is fenced."""
    broker = state.image.brokers.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch or broker.fenced:
        return Decision((), True)
    session = state.sessions.get(broker.id)
    if not state.config.broker_early_fencing_enable or session is None:
        return Decision((), False)
    if session.request_at >= request.refused_at or not _may_fence_another(state, now):
        return Decision((), False)
    records = fencing(state, broker, early=True)
    return Decision(tuple(records), True)


def _may_fence_another(state: ControllerState, now: float) -> bool:
    """Whether at least as many brokers would serve as are fenced early."""
    serving_count = sum(not broker.fenced for broker in state.image.brokers.values())
    return state.sessions.count_ended_early(now) + 1 <= serving_count - 1

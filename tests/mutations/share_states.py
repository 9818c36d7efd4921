"""Mistakes in the states of share partitions (KIP-932)."""

from tests.mutations.table import Mutation

_BATCHES = "tests/share/test_state_batches.py"
_COORDINATOR = "tests/share/test_state_coordinator.py"
_PERSISTER = "tests/share/test_persister.py"
_REQUESTS = "tests/share/test_state_persister.py"
_SHARD = "kwire/share/state/shard.py"

MUTATIONS = (
    Mutation(
        name="complete-records-count-as-lag",
        invariants=(74,),
        path="kwire/node/gauges.py",
        old="yield labels, state.start_offset + state.delivery_complete_count",
        new="yield labels, state.start_offset",
        test="tests/server/test_group_gauges.py::test_lag_of_a_share_group_needs_no_member",
    ),
    Mutation(
        name="late-write-of-a-delivery-wins",
        invariants=(75,),
        path="kwire/share/state/batches.py",
        old="if first > last or _rank(old) >= _rank(new):",
        new="if first > last:",
        test=f"{_BATCHES}::test_write_that_arrives_late_changes_nothing",
    ),
    Mutation(
        name="keep-deliveries-before-the-start",
        invariants=(75,),
        path="kwire/share/state/batches.py",
        old="merged[0] = merged[0]._replace(first_offset=start_offset)",
        new="pass",
        test=f"{_BATCHES}::test_each_offset_has_the_delivery_that_wins",
    ),
    Mutation(
        name="load-only-the-last-update-of-a-share-partition",
        invariants=(72, 75),
        path="kwire/coordinator/replay.py",
        old="            if not self.in_order:\n",
        new="            if True:\n",
        test=f"{_COORDINATOR}::test_successor_continues_with_the_same_state",
    ),
    Mutation(
        name="fence-no-earlier-leader-of-a-share-partition",
        invariants=(75,),
        path=_SHARD,
        old="if NO_LEADER_EPOCH != leader_epoch < self.leader_epochs.get(of, leader_epoch):",
        new="if False:",
        test=f"{_PERSISTER}::test_read_by_a_leader_fences_earlier_leaders",
    ),
    Mutation(
        name="forget-the-leader-epoch-of-a-read",
        invariants=(75,),
        path=_SHARD,
        old="if leader_epoch in (NO_LEADER_EPOCH, self.leader_epochs.get(of)):",
        new="if True:",
        test=f"{_COORDINATOR}::test_leader_epoch_of_a_read_is_stored_once",
    ),
    Mutation(
        name="fence-no-earlier-state-epoch",
        invariants=(75,),
        path=_SHARD,
        old="if NO_STATE_EPOCH != state_epoch < self.state_epochs.get(of, state_epoch):",
        new="if False:",
        test=f"{_PERSISTER}::test_initialization_fences_earlier_state_epochs",
    ),
    Mutation(
        name="initial-state-forgets-the-leader-epoch",
        invariants=(75,),
        path=_SHARD,
        old="self.leader_epochs[of] = max(epoch, self.leader_epochs.get(of, epoch))",
        new="self.leader_epochs[of] = epoch",
        test=f"{_PERSISTER}::test_initialization_keeps_earlier_leaders_fenced",
    ),
    Mutation(
        name="take-no-snapshot-after-many-updates",
        invariants=(72,),
        path=_SHARD,
        old="if self.updates.get(of, 0) < self.settings().updates_per_snapshot:",
        new="if True:",
        test=f"{_COORDINATOR}::test_writes_are_updates_until_the_next_snapshot",
    ),
    Mutation(
        name="prune-a-snapshot-that-is-still-needed",
        invariants=(72, 75),
        path=_SHARD,
        old="return min(self.snapshots.values(), default=self.end_offset)",
        new="return max(self.snapshots.values(), default=self.end_offset)",
        test=f"{_COORDINATOR}::test_pruning_deletes_what_precedes_the_oldest_snapshot",
    ),
    Mutation(
        name="prune-before-the-newer-snapshot-is-replicated",
        invariants=(72, 75),
        path="kwire/share/state/coordinator.py",
        old="offset = await self.service.read(index, ShareStateShard.redundant_offset)",
        new="offset = self.service.machines()[0].redundant_offset()",
        test=f"{_COORDINATOR}::test_pruning_waits_until_the_newer_snapshot_is_replicated",
    ),
    Mutation(
        name="copy-idle-states-for-ever",
        invariants=(72,),
        path=_SHARD,
        old="return state is None or state.create_ms != state.write_ms",
        new="return False",
        test=f"{_COORDINATOR}::test_idle_states_are_copied_so_that_the_log_can_be_pruned",
    ),
    Mutation(
        name="write-of-a-share-partition-overtakes-the-one-before",
        invariants=(75,),
        path="kwire/share/state/requests.py",
        old="if item.of in batch or len(batch) == PARTITIONS_MAX:",
        new="if len(batch) == PARTITIONS_MAX:",
        test=f"{_REQUESTS}::test_writes_that_wait_for_a_request_share_the_next",
    ),
    Mutation(
        name="ask-a-lost-share-coordinator-for-ever",
        invariants=(75,),
        path="kwire/share/state/persister.py",
        old="_ATTEMPTS: Final = 10",
        new="_ATTEMPTS: Final = 1000",
        test=f"{_REQUESTS}::test_requests_without_an_answer_end_after_some_attempts",
    ),
)

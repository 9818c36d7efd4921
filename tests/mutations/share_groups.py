"""Mistakes in share groups (KIP-932): their members, their assignment, their share partitions."""

from tests.mutations.table import Mutation

_MEMBERS = "tests/group/test_share_members.py"
_RECORDED = "tests/group/test_recorded_share_groups.py"
_HANDLERS = "tests/handlers/test_share_groups.py"

MUTATIONS = (
    Mutation(
        name="assign-share-partitions-without-a-state",
        invariants=(74,),
        path="kwire/group/share/target.py",
        old="group.partitions.initialized)\n    yield",
        new="group.partitions.initializing)\n    yield",
        test=f"{_MEMBERS}::test_member_is_assigned_partitions_once_their_state_is_initialized",
    ),
    Mutation(
        name="initialized-share-partitions-wait-for-another-change",
        invariants=(74,),
        path="kwire/group/share/heartbeat.py",
        old="if self.group.assignment_epoch >= self.epoch and self.group.has_unassigned():",
        new="if False:",
        test=f"{_MEMBERS}::test_member_is_assigned_partitions_once_their_state_is_initialized",
    ),
    Mutation(
        name="initialize-share-partitions-with-every-heartbeat",
        invariants=(74,),
        path="kwire/group/share/initialization.py",
        old="    waits = since_ms is not None and now_ms - since_ms < retry_ms\n",
        new="    waits = False\n",
        test=f"{_MEMBERS}::test_initialization_that_got_lost_is_repeated_after_the_retry_interval",
    ),
    Mutation(
        name="lost-initialization-is-never-repeated",
        invariants=(72, 74),
        path="kwire/group/share/initialization.py",
        old="    waits = since_ms is not None and now_ms - since_ms < retry_ms\n",
        new="    waits = True\n",
        test=f"{_MEMBERS}::test_initialization_is_repeated_by_the_next_coordinator",
    ),
    Mutation(
        name="failed-initialization-counts-as-pending",
        invariants=(74,),
        path="kwire/group/share/initialization.py",
        old="    return current._replace(initializing=_without(current.initializing, numbers))\n",
        new="    return current\n",
        test=f"{_HANDLERS}::test_failed_initialization_is_repeated_with_a_later_heartbeat",
    ),
    Mutation(
        name="share-groups-keep-deleted-topics",
        invariants=(74,),
        path="kwire/group/shard.py",
        old="            yield from self._share.forget_topics(names.__contains__)",
        new="            pass",
        test=f"{_MEMBERS}::"
        "test_deleted_topic_leaves_the_group_and_is_initialized_again_if_recreated",
    ),
    Mutation(
        name="share-groups-keep-topics-deleted-unheard",
        invariants=(74,),
        path="kwire/group/shard.py",
        old="            yield from self._share.forget_topics("
        "lambda t: self.topics().name_of(t) is None)",
        new="            pass",
        test=f"{_MEMBERS}::test_topic_deleted_before_the_load_leaves_the_group",
    ),
    Mutation(
        name="deleted-share-groups-leave-their-state",
        invariants=(74,),
        path="kwire/group/deletion.py",
        old="            await groups.share.delete_state(group_id)",
        new="            pass",
        test=f"{_HANDLERS}::test_deleted_group_leaves_no_state",
    ),
    Mutation(
        name="initialize-share-states-while-they-are-deleted",
        invariants=(74,),
        path="kwire/group/share/coordinator.py",
        old="            await self._deletions.wait_ended(work.group_id)\n",
        new="            pass\n",
        test=f"{_HANDLERS}::"
        "test_member_that_joins_during_a_deletion_of_offsets_gets_readable_partitions",
    ),
    Mutation(
        name="deletion-of-share-offsets-forgets-what-failed",
        invariants=(74,),
        path="kwire/group/share/requests.py",
        old="        elif topic_id in current.deleting:",
        new="        elif False:",
        test=f"{_HANDLERS}::test_deletion_of_offsets_that_failed_can_be_repeated",
    ),
    Mutation(
        name="delete-share-groups-in-use",
        invariants=(76,),
        path="kwire/group/requests.py",
        old="        if assigned.members:",
        new="        if False:",
        test=f"{_MEMBERS}::test_group_with_members_cannot_be_deleted",
    ),
    Mutation(
        name="move-the-start-of-share-groups-in-use",
        invariants=(76,),
        path="kwire/group/share/requests.py",
        old="    _check_empty(group)\n    builder = _answering(",
        new="    builder = _answering(",
        test=f"{_HANDLERS}::test_offsets_are_altered_while_the_group_is_empty",
    ),
    Mutation(
        name="sessions-of-share-groups-do-not-survive-a-load",
        invariants=(71, 72),
        path="kwire/group/shard.py",
        old="            yield from self._share.on_loaded()",
        new="            pass",
        test=f"{_MEMBERS}::test_members_have_a_session_after_a_load",
    ),
    Mutation(
        name="accept-any-smaller-epoch-in-share-groups",
        invariants=(74,),
        path="kwire/group/share/heartbeat.py",
        old="    if epoch != member.previous_epoch:",
        new="    if False:",
        test=f"{_MEMBERS}::test_epochs_other_than_the_present_and_the_previous_are_fenced",
    ),
    Mutation(
        name="compute-a-share-target-with-every-change",
        invariants=(74,),
        path="kwire/group/share/heartbeat.py",
        old="if group.assignment_epoch >= self.epoch or group.has_recent_target(\n",
        new="if group.assignment_epoch >= self.epoch or () == (\n",
        test=f"{_MEMBERS}::test_target_is_computed_at_most_once_in_the_assignment_interval",
    ),
    Mutation(
        name="visit-share-members-in-the-order-of-their-ids",
        invariants=(74,),
        path="kwire/group/share/assignor.py",
        old="    order = yield from listing(by_id, java_hash)\n",
        new="    order = sorted(by_id, reverse=True)\n    yield\n",
        test=_RECORDED,
    ),
    Mutation(
        name="serve-share-groups-below-their-feature-level",
        invariants=(74,),
        path="kwire/handlers/shared/served_groups.py",
        old="    if not context.image.features.get(",
        new="    if () == (",
        test=f"{_HANDLERS}::test_share_version_0_serves_no_share_groups",
    ),
    Mutation(
        name="initialize-a-share-partition-twice-at-a-time",
        invariants=(75,),
        path="kwire/group/share/ongoing.py",
        old="            new = each - in_progress\n",
        new="            new = each\n",
        test=f"{_HANDLERS}::test_slow_initialization_that_is_repeated_replaces_no_accepted_records",
    ),
    Mutation(
        name="deleted-share-state-counts-as-initialized",
        invariants=(74,),
        path="kwire/group/share/coordinator.py",
        old="            if watch.has_deletion:",
        new="            if False:",
        test=f"{_HANDLERS}::"
        "test_initialization_that_a_failed_deletion_of_the_group_overtakes_is_repeated",
    ),
    Mutation(
        name="initialize-share-partitions-whose-offsets-are-being-altered",
        invariants=(75,),
        path="kwire/group/share/coordinator.py",
        old="self._initializations.begin(Initialization(group_id, begun.epoch, numbers))",
        new="Initialization(group_id, begun.epoch, {})",
        test=f"{_HANDLERS}::test_initialization_replaces_no_offsets_that_are_being_altered",
    ),
)

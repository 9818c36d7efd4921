"""Mistakes in streams groups (KIP-1071): their members, their tasks, their topics."""

from tests.mutations.table import Mutation

_MEMBERS = "tests/group/test_streams_members.py"
_RECORDED = "tests/group/test_recorded_streams_groups.py"
_HANDLERS = "tests/handlers/test_streams_groups.py"

MUTATIONS = (
    Mutation(
        name="move-streams-tasks-before-they-are-free",
        invariants=(74,),
        path="kwire/group/streams/reconciliation.py",
        old="        free = frozenset(number for number in missing if not is_taken(i, number))",
        new="        free = missing",
        test=f"{_MEMBERS}::test_task_moves_only_once_its_owner_has_given_it_up",
    ),
    Mutation(
        name="put-a-standby-task-beside-its-active-task",
        invariants=(74,),
        path="kwire/group/streams/assignor.py",
        old="            if task not in process.tasks:\n                member_id",
        new="            if True:\n                member_id",
        test=f"{_MEMBERS}::test_standby_tasks_are_on_another_process",
    ),
    Mutation(
        name="decide-on-every-repartition-topic-a-round-later",
        invariants=(74,),
        path="kwire/group/streams/repartition.py",
        old="turn + (sink <= position)",
        new="turn + 1",
        test="tests/group/test_repartition.py",
    ),
    Mutation(
        name="visit-processes-in-the-order-of-their-ids",
        invariants=(74,),
        path="kwire/group/streams/assignor.py",
        old="    order = yield from listing(by_process, java_hash, buckets)\n",
        new="    order = sorted(by_process, reverse=True)\n    yield\n",
        test=_RECORDED,
    ),
    Mutation(
        name="accept-the-previous-epoch-of-streams-members-with-other-tasks",
        invariants=(74,),
        path="kwire/group/streams/heartbeat.py",
        old="    if epoch != member.previous_epoch or not _is_assigned(member, owned):",
        new="    if epoch != member.previous_epoch:",
        test=f"{_MEMBERS}::test_epoch_that_is_not_the_present_one_is_fenced",
    ),
    Mutation(
        name="compute-a-streams-target-with-every-change",
        invariants=(74,),
        path="kwire/group/streams/heartbeat.py",
        old="        if is_too_early(group, self.settings, moment.wall_ms):",
        new="        if False:",
        test=f"{_MEMBERS}::test_target_is_computed_at_most_once_in_the_assignment_interval",
    ),
    Mutation(
        name="assign-streams-tasks-without-the-initial-delay",
        invariants=(74,),
        path="kwire/group/streams/heartbeat.py",
        old="        if self.group.members or self.is_delayed or not delay_ms:",
        new="        if True:",
        test=f"{_MEMBERS}::test_first_assignment_waits_for_further_members",
    ),
    Mutation(
        name="streams-members-may-keep-tasks-for-ever",
        invariants=(71, 74),
        path="kwire/group/streams/heartbeat.py",
        old="                timers.start_revocation(builder, group_id, moved)",
        new="                pass",
        test=f"{_MEMBERS}::test_member_that_keeps_its_tasks_is_fenced_after_its_rebalance_timeout",
    ),
    Mutation(
        name="sessions-of-streams-groups-do-not-survive-a-load",
        invariants=(71, 72),
        path="kwire/group/shard.py",
        old="            yield from self._streams.on_loaded()",
        new="            pass",
        test=f"{_MEMBERS}::test_deadlines_continue_after_a_load",
    ),
    Mutation(
        name="accept-commits-of-streams-members-from-any-older-epoch",
        invariants=(74,),
        path="kwire/group/streams/commits.py",
        old="        if epoch >= assigned:",
        new="        if True:",
        test=f"{_MEMBERS}::test_only_members_commit_and_only_in_their_epoch",
    ),
    Mutation(
        name="delete-streams-groups-in-use",
        invariants=(76,),
        path="kwire/group/requests.py",
        old="    if streams is not None and streams.members:",
        new="    if False:",
        test=f"{_MEMBERS}::test_group_with_members_cannot_be_deleted",
    ),
    Mutation(
        name="streams-groups-do-not-notice-changed-topics",
        invariants=(74,),
        path="kwire/group/streams/heartbeat.py",
        old="    if current is not None and group.checked_version is topics.version:",
        new="    if current is not None:",
        test=f"{_MEMBERS}::test_topic_that_grows_gets_further_tasks",
    ),
    Mutation(
        name="create-internal-topics-for-clients-that-may-not",
        invariants=(74,),
        path="kwire/handlers/streams_group_heartbeat.py",
        old='    if not context.is_allowed("Create", "Cluster", CLUSTER):',
        new="    if False:",
        test=f"{_HANDLERS}::test_client_that_may_not_create_topics_is_told_so",
    ),
    Mutation(
        name="serve-streams-groups-below-their-feature-level",
        invariants=(74,),
        path="kwire/handlers/shared/streams_groups.py",
        old="not context.image.features.get(_FEATURE, 0):",
        new="False:",
        test=f"{_HANDLERS}::test_streams_version_0_serves_no_streams_groups",
    ),
)

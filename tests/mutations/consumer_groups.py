"""Mistakes in the groups whose partitions the coordinator assigns (KIP-848)."""

from tests.mutations.table import Mutation

_MEMBERS = "tests/group/test_consumer_members.py"
_VECTORS = "tests/group/test_disk_vectors.py"
_ASSIGNORS = "tests/group/test_assignors.py"
_MIGRATION = "tests/group/test_migration.py"
_HANDLERS = "tests/handlers/test_consumer_groups.py"

MUTATIONS = (
    Mutation(
        name="assign-partitions-that-another-member-still-owns",
        invariants=(66, 74),
        path="kwire/group/consumer/reconciliation.py",
        old="if number in own_revoking or group.owner_epoch(topic_id, number) == -1",
        new="if True",
        test=f"{_MEMBERS}::"
        "test_second_member_gets_partitions_only_after_the_first_has_revoked_them",
    ),
    Mutation(
        name="silence-confirms-a-revocation",
        invariants=(66, 74),
        path="kwire/group/consumer/reconciliation.py",
        old="    if owned is None:\n        return True\n",
        new="    if owned is None:\n        return False\n",
        test=f"{_MEMBERS}::test_heartbeat_without_owned_partitions_does_not_confirm_a_revocation",
    ),
    Mutation(
        name="forget-the-partitions-of-a-static-member-that-is-away",
        invariants=(68, 74),
        path="kwire/group/consumer/reconciliation.py",
        old="group.owner_epoch(topic_id, number) == -1",
        new="group.owner_epoch(topic_id, number) < 0",
        test=f"{_MEMBERS}::test_partitions_of_a_static_member_that_is_away_go_to_nobody",
    ),
    Mutation(
        name="members-need-not-revoke-in-time",
        invariants=(71, 74),
        path="kwire/group/consumer/member_update.py",
        old="                fencing.start_revocation(builder, group_id, moved)",
        new="                pass",
        test=f"{_MEMBERS}::test_member_that_does_not_revoke_in_time_is_fenced",
    ),
    Mutation(
        name="accept-any-smaller-member-epoch",
        invariants=(69, 74),
        path="kwire/group/consumer/heartbeat.py",
        old="if epoch != member.previous_epoch or not _is_assigned(owned, member.assigned):",
        new="if not _is_assigned(owned, member.assigned):",
        test=f"{_MEMBERS}::test_epoch_before_the_previous_one_is_fenced",
    ),
    Mutation(
        name="accept-the-previous-epoch-with-partitions-of-others",
        invariants=(66, 74),
        path="kwire/group/consumer/heartbeat.py",
        old="if epoch != member.previous_epoch or not _is_assigned(owned, member.assigned):",
        new="if epoch != member.previous_epoch:",
        test=f"{_MEMBERS}::test_epochs_other_than_the_present_and_the_previous_are_fenced",
    ),
    Mutation(
        name="a-second-static-member-takes-the-place-of-a-live-one",
        invariants=(68, 74),
        path="kwire/group/consumer/heartbeat.py",
        old="if is_modern and former.epoch != LEAVE_STATIC_EPOCH:",
        new="if False:",
        test=f"{_MEMBERS}::test_static_member_returns_with_another_id_and_keeps_its_partitions",
    ),
    Mutation(
        name="commits-of-older-epochs-count-for-any-partition",
        invariants=(69, 74),
        path="kwire/group/consumer/commits.py",
        old="            if assigned is None:\n",
        new="            if False:\n",
        test=f"{_MEMBERS}::test_commit_from_an_older_epoch_counts_only_for_partitions_kept_since",
    ),
    Mutation(
        name="new-partitions-do-not-bump-the-group-epoch",
        invariants=(74,),
        path="kwire/group/consumer/member_update.py",
        old="if self.has_subscription_changed or metadata_hash != self.group.metadata_hash:",
        new="if self.has_subscription_changed:",
        test=f"{_MEMBERS}::test_more_partitions_and_new_topics_are_assigned",
    ),
    Mutation(
        name="compute-a-target-with-every-change",
        invariants=(74,),
        path="kwire/group/consumer/member_update.py",
        old="if group.assignment_epoch >= self.epoch or self._is_too_early(moment.wall_ms):",
        new="if group.assignment_epoch >= self.epoch:",
        test=f"{_MEMBERS}::test_assignments_are_computed_at_most_once_in_the_interval",
    ),
    Mutation(
        name="large-target-keeps-members-that-have-left",
        invariants=(74,),
        path="kwire/group/consumer/target.py",
        old="        for member_id in targets.keys() - group.members.keys():",
        new="        for member_id in ():",
        test=f"{_MEMBERS}::test_large_target_leaves_out_members_that_left_while_it_was_computed",
    ),
    Mutation(
        name="sessions-of-consumers-do-not-survive-a-load",
        invariants=(71, 72, 74),
        path="kwire/group/consumer/shard.py",
        old="            fencing.start_session(builder, group_id, member, settings)",
        new="            pass",
        test=f"{_MEMBERS}::test_loaded_members_have_sessions_and_rebalance_timeouts",
    ),
    Mutation(
        name="hash-topics-in-another-order-of-bytes",
        invariants=(72, 74),
        path="kwire/group/consumer/topics.py",
        old='_HEAD: Final = struct.Struct("<bQQ")',
        new='_HEAD: Final = struct.Struct(">bQQ")',
        test=f"{_VECTORS}::test_hash_of_the_topics_of_a_consumer_group_is_kafkas",
    ),
    Mutation(
        name="uniform-assignments-move-more-than-they-must",
        invariants=(74,),
        path="kwire/group/consumer/assignors.py",
        old="            if len(of_topic) > room:",
        new="            if of_topic:\n                of_topic = frozenset()\n"
        "            if len(of_topic) > room:",
        test=f"{_ASSIGNORS}::test_uniform_is_balanced_and_moves_no_more_than_it_must",
    ),
    Mutation(
        name="serve-consumer-groups-below-their-feature-level",
        invariants=(74, 97),
        path="kwire/handlers/shared/consumer_groups.py",
        old="if _PROTOCOL not in protocols or not context.image.features.get(_FEATURE, 0):",
        new="if _PROTOCOL not in protocols:",
        test=f"{_HANDLERS}::test_group_version_0_serves_no_consumer_groups",
    ),
    Mutation(
        name="upgrade-groups-against-the-policy",
        invariants=(74,),
        path="kwire/group/consumer/migration.py",
        old="    if not settings.may_upgrade:",
        new="    if False:",
        test=f"{_MIGRATION}::test_policy_decides_whether_a_classic_group_may_change",
    ),
    Mutation(
        name="upgrade-groups-of-custom-assignors",
        invariants=(74,),
        path="kwire/group/consumer/embedded.py",
        old="    if assignment.user_data:",
        new="    if False:",
        test=f"{_MIGRATION}::test_group_with_a_custom_assignor_stays_classic",
    ),
    Mutation(
        name="members-forget-their-partitions-in-an-upgrade",
        invariants=(66, 74),
        path="kwire/group/consumer/migration.py",
        old="    created += [records.current_record(group_id, member) for member in members]",
        new="    created += []",
        test=f"{_MIGRATION}::"
        "test_live_classic_group_becomes_a_consumer_group_and_shares_its_partitions",
    ),
    Mutation(
        name="groups-of-classic-members-stay-consumer-groups",
        invariants=(74,),
        path="kwire/group/consumer/migration.py",
        old="        0 < left_count == classic_count\n",
        new="        False\n",
        test=f"{_MIGRATION}::test_last_consumer_that_leaves_makes_the_group_classic_again",
    ),
    Mutation(
        name="classic-members-are-not-asked-to-revoke",
        invariants=(66, 74),
        path="kwire/group/consumer/classic_members.py",
        old="        or member.state == MemberState.UNREVOKED\n",
        new="",
        test=f"{_MIGRATION}::"
        "test_live_classic_group_becomes_a_consumer_group_and_shares_its_partitions",
    ),
    Mutation(
        name="classic-members-need-not-rejoin-in-time",
        invariants=(71, 74),
        path="kwire/group/consumer/shard.py",
        old="        fencing.start_rejoin(builder, group.group_id, group.members[member_id])",
        new="        pass",
        test=f"{_MIGRATION}::test_classic_member_that_does_not_rejoin_or_sync_in_time_is_fenced",
    ),
)

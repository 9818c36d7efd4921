"""Mistakes in consumer groups and in what a broker makes of a wrong set-up."""

from tests.mutations.table import Mutation

_OFFSETS = "tests/handlers/test_offset_commit.py"
_NODE = "tests/server/test_groups.py"
_FIRST_USE = "tests/command_line/test_first_use.py"
_SERVICE = "tests/coordinator/test_service.py"

MUTATIONS = (
    Mutation(
        name="answer-offset-of-an-earlier-topic",
        invariants=(40,),
        path="kwire/group/requests.py",
        old="if committed is None or shard.is_of_deleted(topic, committed):",
        new="if committed is None:",
        test=f"{_OFFSETS}::test_an_offset_is_never_answered_for_a_later_topic_of_the_name",
    ),
    Mutation(
        name="keep-offsets-of-topics-deleted-unheard",
        invariants=(40, 73),
        path="kwire/group/shard.py",
        old="return attrs.evolve(turn.decision(), steps=self.forget_deleted())",
        new="return turn.decision()",
        test=f"{_OFFSETS}::test_offsets_of_topics_deleted_unheard_are_removed_after_loading",
    ),
    Mutation(
        name="keep-offsets-loaded-before-the-metadata-was-current",
        invariants=(73,),
        path="kwire/coordinator/groups.py",
        old="self.service.each(lambda shard: shard.forget_deleted())",
        new="pass",
        test=f"{_OFFSETS}::test_no_topic_counts_as_deleted_before_the_metadata_is_current",
    ),
    Mutation(
        name="take-metadata-for-current-while-it-is-read",
        invariants=(11,),
        path="kwire/node/broker.py",
        old="core.publisher.image.topic_ids if self.caught_up else None",
        new="core.publisher.image.topic_ids",
        test=f"{_NODE}::test_offsets_of_kept_topics_survive_every_restart",
    ),
    Mutation(
        name="forget-offsets-while-the-metadata-is-unknown",
        invariants=(11,),
        path="kwire/group/shard.py",
        old="        if ids is None:\n            return False\n",
        new="        ids = ids or {}\n",
        test=f"{_OFFSETS}::test_no_topic_counts_as_deleted_before_the_metadata_is_current",
    ),
    Mutation(
        name="move-groups-when-the-offsets-topic-grows",
        invariants=(11, 72),
        path="kwire/node/broker.py",
        old="return counts.setdefault(topic.id, len(topic.partitions))",
        new="return len(topic.partitions)",
        test=f"{_NODE}::test_growing_the_offsets_topic_moves_no_group_while_the_node_runs",
    ),
    Mutation(
        name="tell-only-the-leader-of-a-failed-assignment",
        invariants=(71,),
        path="kwire/group/shard.py",
        old="        if not decision.records:\n            return decision\n",
        new="        if decision:\n            return decision\n",
        test=f"{_SERVICE}::test_every_member_learns_that_the_assignments_were_not_written",
    ),
    Mutation(
        name="write-group-records-of-any-size",
        invariants=(94,),
        path="kwire/coordinator/shard.py",
        old="if any(len(stored) > max_batch_bytes for",
        new="if any(len(stored) > max_batch_bytes << 30 for",
        test=f"{_SERVICE}::test_records_above_max_message_bytes_are_refused_not_written",
    ),
    Mutation(
        name="format-before-the-address-is-taken",
        invariants=(92,),
        path="kwire/node/core.py",
        old="    examine(config, cluster_id)\n    services",
        new="    identify(config, cluster_id)\n    services",
        test=f"{_FIRST_USE}::test_a_taken_port_leaves_no_files",
    ),
    Mutation(
        name="format-over-data-that-lost-its-name",
        invariants=(45, 93),
        path="kwire/formatting.py",
        old="if holds_logs(path) or (path == metadata and known):",
        new="if path == metadata and known:",
        test=f"{_FIRST_USE}::test_a_damaged_directory_is_left_as_it_is",
    ),
    Mutation(
        name="call-every-failed-lock-another-broker",
        invariants=(92,),
        path="kwire/log/disk.py",
        old="            if error.errno not in _LOCKED:\n                raise\n",
        new="",
        test="tests/server/test_running.py"
        "::test_a_file_system_without_locks_is_not_taken_for_another_broker",
    ),
)

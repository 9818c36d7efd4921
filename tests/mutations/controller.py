"""Mistakes of the active controller."""

from tests.mutations.table import Mutation

MUTATIONS = (
    Mutation(
        name="replaced-controller-decides-without-a-pause",
        invariants=(44,),
        path="kwire/raftmeta/controller/periodic_tasks.py",
        old="                pass\n        except errors.NotController:\n"
        "            await trio.sleep(RETRY_S)\n",
        new="                pass\n        except errors.NotController:\n            pass\n",
        test="tests/raftmeta/controller/test_periodic.py"
        "::test_controller_that_may_have_been_replaced_waits_before_it_decides_again",
    ),
    Mutation(
        name="brokers-are-fenced-before-their-waiting-heartbeats",
        invariants=(44,),
        path="kwire/raftmeta/controller/periodic_tasks.py",
        old="            await give_way()  # Heartbeats",
        new="            # Heartbeats",
        test="tests/raftmeta/controller/test_large_decisions.py::"
        "test_heartbeats_that_waited_for_a_large_decision_come_before_the_fencing",
    ),
    Mutation(
        name="broker-epoch-is-no-offset",
        invariants=(47,),
        path="kwire/raftmeta/controller/brokers.py",
        old="broker_epoch=state.next_offset,",
        new="broker_epoch=7,",
        test="tests/sim/test_controller_sim.py::test_invariants_hold",
    ),
    Mutation(
        name="producer-ids-overlap",
        invariants=(47,),
        path="kwire/raftmeta/controller/producer_id_blocks.py",
        old="next_producer_id=start + PRODUCER_IDS,",
        new="next_producer_id=start + 1,",
        test="tests/raftmeta/controller/test_brokers.py::test_producer_id_blocks_never_overlap",
    ),
    Mutation(
        name="topic-that-exists-is-created",
        invariants=(48,),
        path="kwire/raftmeta/controller/topics.py",
        old="if item.name in state.image.topic_ids or item.name in created_names:",
        new="if item.name in created_names:",
        test="tests/raftmeta/controller/test_repeated.py::test_repeated_request_changes_nothing",
    ),
    Mutation(
        name="controller-answers-before-commit",
        invariants=(48,),
        path="kwire/raftmeta/controller/controller.py",
        old="await commit.wait()",
        new="await trio.lowlevel.checkpoint()",
        test="tests/raftmeta/controller/test_repeated.py::"
        "test_answer_waits_for_the_commit_of_all_that_it_depends_on",
    ),
    Mutation(
        name="leader-updates-are-not-resumed",
        invariants=(44,),
        path="kwire/raftmeta/controller/leader_updates.py",
        old="if not broker.is_active:",
        new="if broker.is_active:",
        test="tests/raftmeta/controller/test_leader_updates.py::"
        "test_next_active_controller_goes_on_with_the_leader_updates",
    ),
    Mutation(
        name="fencing-in-one-decision",
        invariants=(44,),
        path="kwire/raftmeta/controller/leader_update_queue.py",
        old="SLICE_PARTITIONS: Final = 1_000",
        new="SLICE_PARTITIONS: Final = 1_000_000",
        test="tests/raftmeta/controller/test_leader_updates.py::"
        "test_fencing_a_broker_of_many_partitions_is_decided_in_slices",
    ),
    Mutation(
        name="timers-wait-for-the-local-disk",
        invariants=(44,),
        path="kwire/raftmeta/controller/controller.py",
        old="in_force: bool = False",
        new="in_force: bool = True",
        test="tests/raftmeta/controller/test_waits.py::"
        "test_silent_broker_is_fenced_while_the_local_disk_hangs",
    ),
    Mutation(
        name="new-partitions-on-leaving-brokers",
        invariants=(108,),
        path="kwire/raftmeta/controller/placement.py",
        old="active_ids = spread(broker for broker in usable if broker.is_active)",
        new="active_ids = spread(broker for broker in usable if not broker.fenced)",
        test="tests/raftmeta/controller/test_rules.py::"
        "test_topics_are_created_during_a_rolling_restart",
    ),
    Mutation(
        name="half-loaded-snapshot-is-shown",
        invariants=(49,),
        path="kwire/raftmeta/metadata/image_loader.py",
        old="delta = yield from _comparing(before, fresh)",
        new="self.image = image; delta = yield from _comparing(before, fresh)",
        test="tests/raftmeta/metadata/test_image_slices.py::"
        "test_large_snapshot_is_published_as_a_whole",
    ),
    Mutation(
        name="unfinished-transaction-is-published",
        invariants=(49,),
        path="kwire/raftmeta/metadata/image_loader.py",
        old="            return None\n        ready",
        new="            pass\n        ready",
        test="tests/raftmeta/metadata/test_image_slices.py::test_published_images_are_prefixes_of_the_log",
    ),
    Mutation(
        name="delivery-overtakes-a-load",
        invariants=(49,),
        path="kwire/raftmeta/delivery.py",
        old="if (rest := listener.on_commit(batches)) is not None:",
        new="if (rest := listener.on_commit(batches)) is None:",
        test="tests/raftmeta/metadata/test_image_slices.py::"
        "test_quorum_delivers_no_batch_while_a_load_is_in_progress",
    ),
    Mutation(
        name="stops-before-others-know",
        invariants=(108,),
        path="kwire/raftmeta/controller/brokers.py",
        old="return lowest is None or session.shutdown_offset <= lowest",
        new="return True",
        test="tests/raftmeta/controller/test_leader_updates.py::"
        "test_controlled_shutdown_waits_for_leaders_that_move_beside_the_slices",
    ),
    Mutation(
        name="stops-while-it-leads",
        invariants=(108,),
        path="kwire/raftmeta/controller/brokers.py",
        old="if state.index.led_by(broker.id):",
        new="if broker.id < 0:",
        test="tests/raftmeta/controller/test_rolling_restart.py",
    ),
    Mutation(
        name="damage-in-the-synced-metadata-log-is-cut",
        invariants=(42,),
        path="kwire/log/recovery.py",
        old="if end_offset < synced_end:",
        new="if end_offset < 0:",
        test="tests/raftmeta/storage/test_synced_damage.py::"
        "test_damage_in_the_synced_log_is_refused_and_nothing_is_cut",
    ),
    Mutation(
        name="records-cut-by-raft-stay-claimed-as-synced",
        invariants=(42,),
        path="kwire/raftmeta/storage/disk_storage.py",
        old="            self._note_synced_end(end_offset)\n        self._log.truncate_to",
        new="            pass\n        self._log.truncate_to",
        test="tests/raftmeta/storage/test_synced_damage.py::"
        "test_records_that_raft_cuts_are_not_claimed_to_be_synced",
    ),
    Mutation(
        name="notes-of-an-unwritten-decision-stay",
        invariants=(44,),
        path="kwire/raftmeta/controller/controller.py",
        old="                if not deciding.records or await",
        new="                deciding.take_effect()\n"
        "                if not deciding.records or await",
        test="tests/raftmeta/controller/test_large_decisions.py::"
        "test_silent_broker_is_fenced_and_loses_its_leaderships_though_offsets_are_taken",
    ),
    Mutation(
        name="large-decision-is-indexed-in-one-piece",
        invariants=(101,),
        path="kwire/raftmeta/controller/state.py",
        old="yield from self._index.updating(delta)",
        new="self._index.update(delta)",
        test="tests/raftmeta/controller/test_large_decisions.py::test_no_piece_of_a_large_decision_takes_long",
    ),
    Mutation(
        name="decision-made-again-counts-twice",
        invariants=(106,),
        path="kwire/raftmeta/controller/mutation_quota.py",
        old="            self.bucket.tokens += self._taken\n",
        new="            pass\n",
        test="tests/raftmeta/controller/test_mutation_quota.py::test_decision_that_is_made_again_counts_once",
    ),
    Mutation(
        name="topics-made-on-first-use-count-for-the-broker",
        invariants=(106,),
        path="kwire/raftmeta/controller/auto_topic_creation.py",
        old="controller.permit(requester or broker, strict=True)",
        new="controller.permit(broker, strict=True)",
        test="tests/raftmeta/controller/test_mutation_quota.py::"
        "test_auto_created_topic_counts_for_the_client_that_named_it",
    ),
    Mutation(
        name="client-in-debt-is-read-on",
        invariants=(104,),
        path="kwire/handlers/dispatch.py",
        old="            self._mute(throttle_ms_of(key, version, response))\n",
        new="",
        test="tests/handlers/test_forwarding.py::"
        "test_client_is_muted_for_the_throttle_time_of_a_forwarded_answer",
    ),
    Mutation(
        name="one-refused-connection-proves-the-end",
        invariants=(10,),
        path="kwire/raftmeta/controller/process_probe.py",
        old="if len(self._refusals) < 2:",
        new="if len(self._refusals) < 1:",
        test="tests/raftmeta/controller/test_early_fencing.py::"
        "test_two_refusals_after_the_end_of_a_connection_prove_the_end_of_the_process",
    ),
    Mutation(
        name="heartbeat-disproves-nothing",
        invariants=(10,),
        path="kwire/raftmeta/controller/early_fencing.py",
        old="session.request_at >= request.refused_at or ",
        new="",
        test="tests/raftmeta/controller/test_early_fencing.py::"
        "test_heartbeat_after_the_first_refusal_disproves_it",
    ),
    Mutation(
        name="unclean-leader-before-the-session-ends",
        invariants=(32,),
        path="kwire/raftmeta/controller/leader_updates.py",
        old="if not any(map(has_ended_early, (*partition.isr, *partition.elr))):",
        new="if True:",
        test="tests/raftmeta/controller/test_early_fencing.py::"
        "test_unclean_leader_waits_for_the_end_of_the_session",
    ),
    Mutation(
        name="empty-log-in-place-of-a-lost-one-counts-as-intact",
        invariants=(1,),
        path="kwire/raftmeta/controller/partitions.py",
        old="        return directory == DirectoryId.UNASSIGNED\n",
        new="        return False\n",
        test="tests/raftmeta/controller/test_brokers.py::"
        "test_replica_whose_directory_was_lost_leads_again_only_with_its_log",
    ),
    Mutation(
        name="moved-empty-log-counts-as-intact",
        invariants=(1,),
        path="kwire/node/directory_assignments.py",
        old="            is_empty |= earlier.is_empty  # A move of the log does not change that.\n",
        new="            pass\n",
        test="tests/server/test_directory_assignments.py",
    ),
    Mutation(
        name="empty-log-in-place-of-a-lost-one-is-not-reported",
        invariants=(1,),
        path="kwire/node/directory_assignments.py",
        old="is_empty = self._is_lost(key) and not has_records",
        new="is_empty = False",
        test="tests/server/test_directory_assignments.py::"
        "test_empty_log_in_place_of_a_lost_one_leads_only_if_an_operator_elects_it",
    ),
    Mutation(
        name="empty-log-takes-the-place-of-a-missing-directory",
        invariants=(1,),
        path="kwire/raftmeta/controller/partitions.py",
        old="    return old is not None and is_directory(old) and not broker.has_online(old)\n",
        new="    return False\n",
        test="tests/raftmeta/controller/test_missing_directories.py",
    ),
    Mutation(
        name="log-in-a-failed-directory-is-given-up",
        invariants=(1,),
        path="kwire/raftmeta/controller/state.py",
        old="return not self.sessions.may_have_failed(broker_id, directory)",
        new="return True",
        test="tests/raftmeta/controller/test_missing_directories.py",
    ),
    Mutation(
        name="log-that-was-moved-counts-as-lost",
        invariants=(1,),
        path="kwire/node/directory_assignments.py",
        old="        batch |= dict.fromkeys(intact, DirectoryId.LOST)\n",
        new="",
        test="tests/server/test_directory_assignments.py::"
        "test_log_that_was_moved_while_the_broker_was_down_leads",
    ),
    Mutation(
        name="topic-given-by-name-and-by-id-is-deleted",
        invariants=(1,),
        path="kwire/raftmeta/controller/topics.py",
        old="topic is not None and name is not None and (None, topic.id) in keys",
        new="False",
        test="tests/raftmeta/controller/test_topics.py::"
        "test_topic_that_a_request_gives_by_name_and_by_id_is_not_deleted",
    ),
)

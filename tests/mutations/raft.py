"""Mistakes in the metadata quorum and in what connects its nodes."""

from tests.mutations.table import Mutation

MUTATIONS = (
    Mutation(
        name="name-the-leader-on-a-listener-that-the-requester-does-not-use",
        invariants=(108,),
        path="kwire/raftmeta/raft/messages.py",
        old="if each.name == listener), None)",
        new="), None)",
        test="tests/raftmeta/raft/test_kip_595.py"
        "::test_requester_gets_the_leaders_address_on_its_own_listener",
    ),
    Mutation(
        name="requests-about-any-partition-are-served",
        invariants=(100,),
        path="kwire/raftmeta/raft/messages.py",
        old="if is_named and getattr(partition, index_field) == 0 else None",
        new="if is_named else None",
        test="tests/raftmeta/raft/test_kip_595.py::test_only_the_metadata_partition_is_served",
    ),
    Mutation(
        name="any-fetch-vouches-for-the-leader",
        invariants=(34,),
        path="kwire/raftmeta/raft/progress.py",
        old="lambda replica: replica.followed_at > since",
        new="lambda replica: replica.fetched_at > since",
        test="tests/raftmeta/raft/test_check_quorum.py",
    ),
    Mutation(
        name="questions-to-stopped-controllers-wait-for-the-back-off",
        invariants=(34,),
        path="kwire/net/connection_pool.py",
        old="link.retry_at = -math.inf",
        new="pass",
        test="tests/net/test_controller_channel.py"
        "::test_brokers_learn_at_once_and_again_that_all_controllers_have_stopped",
    ),
    Mutation(
        name="suspended-leader-goes-by-its-own-clock",
        invariants=(34,),
        path="kwire/raftmeta/raft/progress.py",
        old="since = now + state.suspended_s() - state.config.fetch_timeout_s",
        new="since = now - state.config.fetch_timeout_s",
        test="tests/raftmeta/raft/test_check_quorum.py",
    ),
    Mutation(
        name="count-strangers-in-check-quorum",
        invariants=(44,),
        path="kwire/raftmeta/raft/progress.py",
        old="replica = role.replicas.get(_key_of(state, role, node.id))\n"
        "        if replica is not None and",
        new="replica = max(\n"
        "            (r for r in role.replicas.values() if r.key.id == node.id),\n"
        "            key=lambda r: r.fetched_at,\n"
        "            default=None,\n"
        "        )\n"
        "        if replica is not None and",
        test="tests/raftmeta/raft/test_check_quorum.py",
    ),
    Mutation(
        name="any-listener-of-a-voter",
        invariants=(44,),
        path="kwire/raftmeta/raft/voters.py",
        old="next((e for e in endpoints if e.name == listener), endpoints[0])",
        new="endpoints[0]",
        test="tests/raftmeta/raft/test_listeners.py",
    ),
    Mutation(
        name="older-version-ends-the-node",
        invariants=(44,),
        path="kwire/net/client.py",
        old="if version >= BY_KEY[key].stable:",
        new="if version >= 0:",
        test="tests/net/test_client.py::test_call_fails_if_the_other_nodes_version_cannot_carry_the_request",
    ),
    Mutation(
        name="snapshot-decoded-in-one-piece",
        invariants=(44,),
        path="kwire/raftmeta/storage/decoding.py",
        old="            await slices.pause()\n",
        new="",
        test="tests/raftmeta/raft/test_snapshot_slices.py::test_large_snapshot_is_decoded_in_slices",
    ),
    Mutation(
        name="every-voter-is-needed",
        invariants=(44, 110),
        path="kwire/raftmeta/raft/voters.py",
        old="return len(self.voters) // 2 + 1",
        new="return len(self.voters)",
        test="tests/sim/test_raft_sim.py::test_invariants_hold",
    ),
    Mutation(
        name="vote-is-gone-if-its-sync-cannot-begin",
        invariants=(42,),
        path="kwire/raftmeta/storage/disk_storage.py",
        old="        self._flush = self._log.flush_state.start()\n"
        "        election, self._election = self._election, None\n",
        new="        election, self._election = self._election, None\n"
        "        self._flush = self._log.flush_state.start()\n",
        test="tests/raftmeta/storage/test_scarce_descriptors.py::"
        "test_vote_is_written_by_the_next_sync_if_one_could_not_begin",
    ),
    Mutation(
        name="vote-is-sent-without-its-sync",
        invariants=(42, 90),
        path="kwire/raftmeta/disk_calls.py",
        old="                if not lacks_descriptors(error) or not can_go_on():\n"
        "                    raise\n",
        new="                if in_thread and lacks_descriptors(error):\n"
        "                    return None\n"
        "                if not lacks_descriptors(error) or not can_go_on():\n"
        "                    raise\n",
        test="tests/raftmeta/storage/test_scarce_descriptors.py::"
        "test_vote_waits_for_a_descriptor_and_is_durable_before_the_response",
    ),
    Mutation(
        name="attempts-without-descriptors-are-made-in-every-turn",
        invariants=(90,),
        path="kwire/raftmeta/storage/scarcity.py",
        old="if self._storage.shed() and attempt == 0:",
        new="if self._storage.shed():",
        test="tests/raftmeta/storage/test_scarce_descriptors.py::"
        "test_loop_runs_between_attempts_though_files_could_be_closed",
    ),
    Mutation(
        name="write-that-failed-is-left-out-of-the-turn",
        invariants=(42, 90),
        path="kwire/raftmeta/storage/storage_turn.py",
        old="self._perform(storage, self._effects[0])\n            self._effects.popleft()\n",
        new="self._perform(storage, self._effects.popleft())\n",
        test="tests/raftmeta/storage/test_scarce_descriptors.py",
    ),
    Mutation(
        name="log-that-another-program-cut-counts-as-synced",
        invariants=(42,),
        path="kwire/raftmeta/storage/disk_storage.py",
        old="if stored_epochs.at(end_offset - 1) not in (None, epoch):",
        new="if stored_epochs.at(end_offset - 1) == -1:",
        test="tests/raftmeta/storage/test_synced_damage.py::"
        "test_log_that_another_program_cut_may_be_torn_behind_the_cut",
    ),
    Mutation(
        name="follower-appends-without-looking-at-the-crc",
        invariants=(43,),
        path="kwire/raftmeta/raft/replication.py",
        old="header.last_offset_delta < 0 or not crc_ok(data, pos, header):",
        new="header.last_offset_delta < 0:",
        test="tests/quorum/test_log.py::"
        "test_a_damaged_batch_from_the_leader_is_refused_and_fetched_again",
    ),
    Mutation(
        name="leader-serves-what-rotted-on-its-disk",
        invariants=(44,),
        path="kwire/raftmeta/storage/storage_turn.py",
        old="                damage.check_log(data, log_slice.start_offset)\n",
        new="",
        test="tests/raftmeta/storage/test_rot.py::"
        "test_leader_does_not_serve_a_batch_that_rotted_and_does_not_start_again",
    ),
    Mutation(
        name="fetch-that-was-sent-earlier-vouches-for-the-leader",
        invariants=(34,),
        path="kwire/raftmeta/raft/progress.py",
        old="    if position != replica.answered:\n        replica",
        new="    if position:\n        replica",
        test="tests/raftmeta/raft/test_check_quorum.py::"
        "test_two_fetches_that_waited_during_a_pause_do_not_vouch_for_the_leader",
    ),
    Mutation(
        name="restarted-voter-forgets-what-it-promised",
        invariants=(34,),
        path="kwire/raftmeta/raft/start_stop.py",
        old="refuse_pre_votes_until=until, ",
        new="",
        test="tests/raftmeta/raft/test_kip_996.py::"
        "test_restarted_follower_grants_no_pre_vote_before_a_fetch_timeout",
    ),
    Mutation(
        name="leader-serves-a-snapshot-that-rotted",
        invariants=(44,),
        path="kwire/raftmeta/storage/snapshot_pieces.py",
        old="        if not crc_ok(data, pos, header):",
        new="        if False:",
        test="tests/raftmeta/storage/test_rot.py::"
        "test_leader_does_not_serve_a_snapshot_that_rotted",
    ),
    Mutation(
        name="pages-of-a-failed-fsync-count-as-synced-after-a-start",
        invariants=(42,),
        path="kwire/raftmeta/storage/disk_storage.py",
        old="        _write_again(self._log, self._synced_end or 0)\n",
        new="",
        test="tests/raftmeta/storage/test_synced_damage.py::"
        "test_pages_of_a_failed_fsync_are_written_again_at_a_start",
    ),
)

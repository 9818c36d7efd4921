"""Mistakes in moves between log directories: the copy, the switch, and crashes in between."""

from tests.mutations.table import Mutation

MOVE = "kwire/log/directories/log_move.py"
MOVES = "kwire/log/directories/moves.py"
TEST = "tests/log/test_moves.py"
ASSIGNMENTS = "kwire/node/directory_assignments.py"
ASSIGNED = "tests/server/test_directory_assignments.py"
CRASH = f"{TEST}::test_crash_at_any_step_of_a_move_loses_nothing"
FAULTS = "tests/log/test_move_faults.py"
CHANGED = f"{TEST}::test_moved_log_equals_the_log_after_any_changes"

MUTATIONS = (
    Mutation(
        name="rejected-directory-is-not-sent-again",
        invariants=(89,),
        path=ASSIGNMENTS,
        old="            self._has_pending.notify()\n\n    async def _send(",
        new="            del self._pending[key]\n\n    async def _send(",
        test=ASSIGNED,
    ),
    Mutation(
        name="directory-of-a-move-that-was-given-up-stays",
        invariants=(89,),
        path=ASSIGNMENTS,
        old="is_correction=earlier is not None",
        new="is_correction=False",
        test=ASSIGNED,
    ),
    Mutation(
        name="crash-in-a-switch-leaves-two-logs",
        invariants=(83,),
        path=MOVE,
        old="            future_logs.mark_moved(self.future, self.source.directory)\n",
        new="            pass\n",
        test=CRASH,
    ),
    Mutation(
        name="old-directory-goes-before-the-new-name-is-durable",
        invariants=(83,),
        path=MOVE,
        old="            await target.in_thread(target.directory.disk, "
        "target.directory.disk.sync_directory)\n",
        new="            pass\n",
        test=CRASH,
    ),
    Mutation(
        name="future-replica-ignores-truncations",
        invariants=(26,),
        path=MOVE,
        old="            return min(end_offset, epoch_end)",
        new="            return end_offset",
        test=CHANGED,
    ),
    Mutation(
        name="switch-leaves-the-last-records-behind",
        invariants=(83,),
        path=MOVE,
        old="            future.end_offset == log.end_offset == log.writer.written_offset\n",
        new="            log.end_offset == log.writer.written_offset\n",
        test=f"{TEST}::test_records_that_the_switch_cannot_copy_at_once_are_moved",
    ),
    Mutation(
        name="truncation-before-a-slice-goes-unnoticed",
        invariants=(26,),
        path=MOVE,
        old="            if is_throttled:\n"
        "                await self._wait_rate()\n"
        "            self._check()\n"
        "            # A later cut of the current log must be noticed: once batches of the next "
        "epoch follow\n            # the cut, the epochs no longer show the divergence.\n"
        "            removal_count = self.log.clean_state.removal_count\n"
        "            await self._follow_cuts()\n",
        new="            await self._follow_cuts()\n"
        "            if is_throttled:\n"
        "                await self._wait_rate()\n"
        "            self._check()\n"
        "            removal_count = self.log.clean_state.removal_count\n",
        test=CHANGED,
    ),
    Mutation(
        name="moved-log-forgets-producers-without-batches",
        invariants=(51,),
        path=MOVE,
        old="            for _ in self.future.producers.restoring(stored):\n"
        "                await slices.pause()\n",
        new="            del stored, slices\n",
        test=f"{TEST}::test_moved_log_still_rejects_a_repeated_batch",
    ),
    Mutation(
        name="controller-is-told-of-a-move-too-late",
        invariants=(83,),
        path=MOVES,
        old="                    await self.rules.wait_assigned(move.log, move.target.directory)\n",
        new="",
        test=f"{TEST}::test_controller_knows_the_target_before_the_switch",
    ),
    Mutation(
        name="log-is-cleaned-during-its-move",
        invariants=(87,),
        path=MOVES,
        old="with running.scope, move.source.busy.cleaning.pause(log):",
        new="with running.scope:",
        test=f"{TEST}::test_no_pass_cleans_a_log_during_its_move",
    ),
    Mutation(
        name="move-begins-in-the-middle-of-a-swap",
        invariants=(87,),
        path=MOVES,
        old="                await move.source.busy.wait_cut(log)\n",
        new="",
        test=f"{TEST}::test_move_does_not_begin_in_the_middle_of_a_swap_of_segments",
    ),
    Mutation(
        name="records-follow-those-that-the-target-could-not-cut",
        invariants=(26,),
        path=MOVE,
        old="            if future.end_offset > common_end:\n"
        "                self._cannot_cut(common_end)\n",
        new="",
        test=f"{FAULTS}::test_records_that_the_target_cannot_cut_are_not_moved",
    ),
    Mutation(
        name="log-moves-onto-its-old-directory",
        invariants=(89,),
        path=MOVE,
        old="            future_logs.check_vacant(self.target, self.log.partition)\n",
        new="",
        test=f"{FAULTS}::test_log_moves_back_before_its_old_directory_is_renamed",
    ),
    Mutation(
        name="controller-never-learns-that-a-moving-replica-is-lost",
        invariants=(89,),
        path="kwire/node/broker.py",
        old="            assignments().report((log.topic_id, log.partition.partition), "
        "directory_id)\n",
        new="",
        test="tests/server/test_failed_directories.py"
        "::test_controller_learns_that_the_source_of_a_move_has_failed",
    ),
    Mutation(
        name="mark-of-an-earlier-move-is-believed",
        invariants=(83,),
        path=MOVE,
        old="        await self._in_thread(partial(future_logs.unmark_durably, log))\n",
        new="",
        test=f"{FAULTS}::test_mark_of_an_earlier_move_is_not_believed",
    ),
)

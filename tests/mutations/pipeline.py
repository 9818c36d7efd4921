"""Mistakes in the run of many tables, and in the limit in bytes."""

from tests.mutations.table import Mutation

PLAN = "kwire_pipeline/many/plan.py"
PLANS = "tests/pipeline/test_many_plan.py"
STATE = "kwire_pipeline/many/state.py"
RUN = "kwire_pipeline/many/runs.py"
RUNS = "tests/pipeline/test_many_runs.py"
NOTE = "kwire_pipeline/many/notes.py"
NOTES = "tests/pipeline/test_many_notes.py"
PACE = "kwire_pipeline/pace.py"
PACES = "tests/pipeline/test_pace.py"

MUTATIONS = (
    Mutation(
        name="table-of-another-topic-is-written",
        invariants=(),
        path=PLAN,
        old="if (other := tables.get(name)) is not None:",
        new="if (other := tables.get(name)) == name:",
        test=f"{PLANS}::test_topic_whose_table_is_taken_is_refused_and_the_first_goes_on",
    ),
    Mutation(
        name="topic-that-appears-later-begins-at-its-end",
        invariants=(),
        path=PLAN,
        old="is_late=topic not in early",
        new="is_late=False",
        test=f"{PLANS}::test_topic_that_appears_later_is_read_from_its_first_record",
    ),
    Mutation(
        name="quiet-topic-is-run",
        invariants=(),
        path=STATE,
        old="return any(end > read or (end < read and not may_lose) for end, read in pairs)",
        new="return bool(pairs)",
        test=f"{RUNS}::test_topic_without_new_records_costs_no_run",
    ),
    Mutation(
        name="half-done-batch-of-a-quiet-topic-is-left",
        invariants=(),
        path=RUN,
        old="return place if place is not None and place.is_at_rest else None",
        new="return place",
        test=f"{RUNS}::test_quiet_topic_is_run_if_something_is_wrong_with_it",
    ),
    Mutation(
        name="each-run-of-a-table-adopts",
        invariants=(),
        path=STATE,
        old="        self.intent = Intent.CONTINUE\n",
        new="",
        test=f"{RUNS}::test_answer_to_a_refusal_is_for_the_first_run_of_each_table_alone",
    ),
    Mutation(
        name="failed-table-without-new-records-counts-as-written",
        invariants=(),
        path=STATE,
        old="or self.place is None or self.problem is not None:",
        new="or self.place is None:",
        test=f"{RUNS}::test_problem_is_forgotten_after_a_run_that_ends_well",
    ),
    Mutation(
        name="table-is-run-again-for-a-look-before-its-run",
        invariants=(),
        path=STATE,
        old="        self.outdated = look\n",
        new="",
        test=f"{RUNS}::test_table_is_run_once_after_a_look_whatever_happens_during_its_run",
    ),
    Mutation(
        name="table-is-stopped-because-another-command-holds-it",
        invariants=(),
        path=STATE,
        old="elif is_endless and isinstance(error, Held):",
        new="elif is_endless and isinstance(error, Overtaken):",
        test=f"{RUNS}::test_table_that_another_command_holds_is_written_after_it",
    ),
    Mutation(
        name="lease-alone-is-a-checkpoint",
        invariants=(),
        path=NOTE,
        old=' if folder.read(f"{TABLES}/{t}/{identity.FILE}") is not None',
        new="",
        test=f"{NOTES}::test_topic_of_which_only_a_lease_was_written_has_no_checkpoint",
    ),
    Mutation(
        name="stored-problems-have-secrets",
        invariants=(),
        path="kwire_pipeline/many/engine.py",
        old="redact(problem.text, secrets)",
        new="problem.text",
        test=f"{NOTES}::test_stored_problems_have_no_secrets",
    ),
    Mutation(
        name="wait-for-a-turn-counts-as-a-good-time",
        invariants=(),
        path=RUN,
        old="        state.started_s = self.clock()\n        end_s = state.started_s + SLICE_S",
        new="        end_s = self.clock() + SLICE_S",
        test=f"{RUNS}::test_wait_for_a_turn_is_no_time_in_which_a_table_was_well",
    ),
    Mutation(
        name="topic-that-appears-later-is-adopted",
        invariants=(),
        path=RUN,
        old="intent=self.order.intent if self._look is None else Intent.CONTINUE,",
        new="intent=self.order.intent,",
        test=f"{RUNS}::test_answer_to_a_refusal_is_not_for_topics_that_appear_later",
    ),
    Mutation(
        name="problems-that-the-store-did-not-take-are-not-stored-again",
        invariants=(),
        path=RUN,
        old="if problems != self._noted and self.engine.note_problems(problems):",
        new="if problems != self._noted and (self.engine.note_problems(problems) or True):",
        test=f"{RUNS}::test_problems_are_stored_as_soon_as_the_store_is_back",
    ),
    Mutation(
        name="first-look-is-forgotten",
        invariants=(),
        path=RUN,
        old="            self.engine.note_first(topics)\n",
        new="",
        test=f"{RUNS}::test_topics_of_an_interrupted_first_run_begin_where_the_file_says",
    ),
    Mutation(
        name="table-of-a-deleted-topic-is-given-away",
        invariants=(),
        path=PLAN,
        old="{*topics, *started, *planned}",
        new="topics",
        test=f"{PLANS}::test_table_of_a_topic_that_is_gone_is_not_given_to_another",
    ),
    Mutation(
        name="topic-deleted-during-its-run-is-run-again-without-end",
        invariants=(),
        path=STATE,
        old="if may_go and (topic is None or look is self.gone_since):",
        new="if may_go and topic is None:",
        test=f"{RUNS}::test_topic_that_is_deleted_during_its_run_is_no_problem_if_it_may_be",
    ),
    Mutation(
        name="refusal-is-tried-again-at-each-interval",
        invariants=(),
        path=STATE,
        old="            self.refusals += 1\n",
        new="            self.refusals = 1\n",
        test=f"{RUNS}::test_refused_table_is_written_once_its_cause_is_gone_and_tried_ever_less_often",
    ),
    Mutation(
        name="permanent-refusal-is-tried-again",
        invariants=(),
        path=STATE,
        old="and not isinstance(error, Permanent):",
        new="and not isinstance(error, Held):",
        test=f"{RUNS}::test_failure_that_passes_is_tried_again_and_a_permanent_refusal_is_not",
    ),
    Mutation(
        name="larger-records-count-by-half",
        invariants=(),
        path=PACE,
        old="size if former is None or size > former else (size + former) / 2",
        new="size if former is None else (size + former) / 2",
        test=f"{PACES}::test_larger_records_count_at_once_and_smaller_ones_by_half",
    ),
    Mutation(
        name="batch-of-huge-records-has-no-offset",
        invariants=(),
        path=PACE,
        old="return max(1, min(limits.max_offsets_per_trigger, offset_count))",
        new="return min(limits.max_offsets_per_trigger, offset_count)",
        test=f"{PACES}::test_batch_has_an_offset_and_no_more_than_the_limit_in_offsets",
    ),
)

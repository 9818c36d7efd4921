"""Mistakes in what every part uses."""

from tests.mutations.table import Mutation

MUTATIONS = (
    Mutation(
        name="slices-never-end",
        invariants=(10,),
        path="kwire/drive.py",
        old="if self._now() >= self._end:",
        new="if self._now() < self._end - 1000:",
        test="tests/test_drive.py::test_long_work_gives_way_once_per_slice",
    ),
    Mutation(
        name="metadata-of-everything-at-once",
        invariants=(10,),
        path="kwire/handlers/metadata.py",
        old="if index % _PARTITIONS_AT_ONCE == 0 and slices.is_over:",
        new="if index < 0:",
        test="tests/handlers/test_slices.py::test_other_tasks_run_during_a_large_response",
    ),
    Mutation(
        name="errors-of-waits-do-not-reach-the-work",
        invariants=(10,),
        path="kwire/waits.py",
        old="                call = steps.throw(error)\n",
        new="                raise error\n",
        test="tests/test_waits.py::test_work_continues_with_the_results_and_errors_of_its_waits",
    ),
)

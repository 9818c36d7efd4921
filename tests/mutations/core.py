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
        old="            await slices.pause()\n",
        new="            pass\n",
        test="tests/handlers/test_slices.py::test_other_tasks_run_during_a_large_response",
    ),
)

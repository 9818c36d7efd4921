"""Mistakes in what every part uses."""

from tests.mutations.table import Mutation

MUTATIONS = (
    Mutation(
        name="slices-never-end",
        invariants=(10,),
        path="kwire/drive.py",
        old="if self._now() >= self._end:",
        new="if self._now() < self._end - 1000:",
        test="tests/test_drive.py::test_long_work_gives_way_once_a_slice",
    ),
)

"""Print the table of operations: ``python -m tests.turns [part of a name]``.

The counts are the same on each machine, but not with each version of Python.
"""

import sys

from tests.turns.scenes import SCENES

print("| operation | size | longest turn, units | units in all |\n|---|---|---|---|")
for scene in SCENES:
    for result in scene.measure("".join(sys.argv[1:])):
        operation = result.operation
        print(
            f"| {operation.name} | {operation.size:,} {operation.grows} "
            f"| {result.longest.units:,} | {result.total:,} |"
        )

"""A run at an interval without Spark: its folder is in memory, and it has no query of its own."""

from typing import Any, cast

import attrs

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.values import Trigger
from kwire_pipeline.engine.lease import Lease
from kwire_pipeline.engine.query import Control, Opened, Run
from kwire_pipeline.engine.storage import Folder
from kwire_pipeline.tables.destinations import Destinations
from tests.support.pipeline.files import Files
from tests.support.pipeline.many import place
from tests.support.pipeline.orders import ORDERS

NOTHING: Any = None
"""Stands for what only Spark could be asked."""
ENDLESS = attrs.evolve(ORDERS, trigger=Trigger.parse("10 seconds"))


class CheckpointFolder(Files):
    """The folder of a checkpoint, and that of Spark's in it."""

    def at(self, name: str) -> "CheckpointFolder":
        return self


def run_without_spark(
    folder: CheckpointFolder,
    control: Control,
    pipeline: Pipeline = ENDLESS,
    destinations: Destinations = NOTHING,
) -> Run:
    """Return a run that holds the lease of its folder."""
    opened = Opened(
        folder=cast(Folder, folder),
        identity=place("orders", 0).identity,
        shape=NOTHING,
        destinations=destinations,
    )
    return Run(NOTHING, pipeline, opened, Lease.take(folder), NOTHING, control)

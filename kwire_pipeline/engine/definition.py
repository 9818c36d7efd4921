"""The definition of rows: all keys that determine whether a record is a row, and where it goes.

A half-done batch was classified with the definition of the run that began it. With a different
definition, a record could end up in both tables or in neither, so only the original definition may
finish the batch.

Rules of this file: plain data only. A key that a later version adds is left out while it has its
default, so that an upgrade does not change the definition.
"""

import hashlib
import json

from kwire_pipeline.config.model import Pipeline, RecordFormat
from kwire_pipeline.config.values import Evolution, Mode, Tombstones


def definition_of(pipeline: Pipeline) -> str:
    """Return the hash of the definition."""
    parts: dict[str, object] = {
        "value": _format(pipeline.value),
        "key": _format(pipeline.key),
        "columns": {name: [c.root.value, *c.path] for name, c in pipeline.columns.items()},
        "omit": sorted(pipeline.omit),
        "expectations": {
            name: [expectation.check, expectation.action.value]
            for name, expectation in pipeline.expectations.items()
        },
        "transform": pipeline.transform,
        "dead_letters": pipeline.dead_letters.table,
        "origin_prefix": pipeline.table.origin_prefix,
    }
    table = pipeline.table
    if table.mode is not Mode.APPEND or table.tombstones is not Tombstones.DEAD_LETTER:
        parts["changes"] = [
            table.mode.value,
            list(table.keys),
            table.envelope.value,
            table.tombstones.value,
        ]
    if table.sequence_by:
        parts["sequence"] = [list(table.sequence_by), table.deletions]
    if pipeline.dead_letters.topic is not None:
        parts["letter_topic"] = pipeline.dead_letters.topic
    if pipeline.table.evolution is Evolution.RESCUE:
        parts["rescue_column"] = pipeline.table.rescue_column
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _format(part: RecordFormat) -> list[object]:
    units = {path: unit.value for path, unit in part.timestamps.items()}
    return [part.format.value, part.schema, units]

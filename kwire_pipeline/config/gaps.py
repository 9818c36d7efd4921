"""The keys and values of the file that no command supports yet; they are rejected by name.

Rules of this file: each key or value that the model accepts but the engine does not support has a
line here, so that a value without effect is never silently accepted. Delete the line once the
engine supports it.
"""

from collections.abc import Iterator
from typing import Final

import attrs

from kwire_pipeline.config.describe import show
from kwire_pipeline.config.model import Pipeline


@attrs.frozen
class Gap:
    """An unsupported value of a key, or every value except the default."""

    key: str
    value: str | None = None
    """None means every value except the default."""
    reason: str = ""
    """The reason, if the pipeline cannot change it; otherwise empty."""

    def __str__(self) -> str:
        return self.key if self.value is None else f"{self.key}: {self.value}"


NO_PROTOBUF: Final = "Maven has no org.apache.spark:spark-protobuf_2.13"
GAPS: Final = (
    Gap("key.format", "protobuf", NO_PROTOBUF),
    Gap("value.format", "protobuf", NO_PROTOBUF),
)


def gaps(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """Yield the path and a sentence for each configured value that is not supported yet."""
    for gap in GAPS:
        value: object = pipeline
        default: object = None
        for name in gap.key.split("."):
            section = type(value)
            assert attrs.has(section)
            default = attrs.fields_dict(section)[name].default
            value = getattr(value, name)
        if gap.value == show(value) or (gap.value is None and value != default):
            served = "" if gap.value is None else f"{gap.value} "
            reason = f": {gap.reason}" if gap.reason else ""
            yield gap.key, f"{served}is not available yet{reason}"

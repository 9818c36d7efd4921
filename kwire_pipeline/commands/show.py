"""The output of commands, with the secrets of the pipeline hidden."""

from collections.abc import Iterable

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.secrets import redact, secrets_of


def show(pipeline: Pipeline, lines: Iterable[str]) -> None:
    """Print lines."""
    print(redact("\n".join(lines), secrets_of(pipeline)), flush=True)

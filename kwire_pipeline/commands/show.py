"""The output of commands, with the secrets of the pipeline hidden."""

import sys
from collections.abc import Callable, Iterable

from kwire_pipeline.config.model import Pipeline
from kwire_pipeline.config.secrets import redact, secrets_of
from kwire_pipeline.signals import PROGRAM


def show(pipeline: Pipeline, lines: Iterable[str]) -> None:
    """Print lines."""
    print(redact("\n".join(lines), secrets_of(pipeline)), flush=True)


def warner(pipeline: Pipeline) -> Callable[[str], None]:
    """Return a function that prints a warning on stderr."""
    secrets = secrets_of(pipeline)

    def warn(text: str) -> None:
        print(f"{PROGRAM}: {redact(text, secrets)}", file=sys.stderr, flush=True)

    return warn

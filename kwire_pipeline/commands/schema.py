"""`kwire-pipeline schema`: the JSON Schema of a pipeline's file, for editors."""

import json
from collections.abc import Callable

from kwire_pipeline.config.editor_schema import editor_schema


def schema(write: Callable[[str], object]) -> int:
    """Print the schema."""
    write(json.dumps(editor_schema(), indent=1))
    return 0

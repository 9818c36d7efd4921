"""The vectors that Apache Kafka's own classes made, as these tests read them."""

import base64
import gzip
import json
import os
from pathlib import Path
from typing import Any

_HOME = Path(os.environ.get("KWIRE_GOLDEN", Path(__file__).parents[2] / "vectors"))


def lines(name: str) -> list[dict[str, Any]]:
    with gzip.open(_HOME / name, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def raw(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)

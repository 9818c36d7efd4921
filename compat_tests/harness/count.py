"""Merge the counts of a run (``pytest --counts=FILE``) into results.json.

python -m compat_tests.harness.count kwire|kafka FILE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from compat_tests.harness.suite import record


def main(kind: str, file: str) -> None:
    for folder, outcomes in json.loads(Path(file).read_text()).items():
        if not folder.endswith("_suite"):
            total = sum(outcomes.values())
            counts = {"passed": outcomes.get("passed", 0), "expected": total, "of": total}
            record(folder, kind, counts)


if __name__ == "__main__":
    main(*sys.argv[1:])

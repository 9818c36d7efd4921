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
            passed = outcomes.get("passed", 0)
            failed = sum(outcomes.values()) - passed
            record(folder, kind, {"passed": passed, "failed": failed, "excluded": {}})


if __name__ == "__main__":
    main(*sys.argv[1:])

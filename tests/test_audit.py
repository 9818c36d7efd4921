"""The stage `audit` of the test run: what it finds in the report of pip-audit."""

import runpy
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "audit.py"
FLAW = {"id": "PYSEC-2026-1", "fix_versions": ["1.2"], "aliases": [], "description": "..."}


# Any: the module is run, not imported.
def problems(*packages: dict[str, Any]) -> Any:
    return runpy.run_path(str(SCRIPT))["problems"]({"dependencies": list(packages), "fixes": []})


def test_vulnerability_is_found_and_names_the_version_with_the_fix() -> None:
    bad = {"name": "trio", "version": "1.0", "vulns": [FLAW, {**FLAW, "fix_versions": []}]}
    good = {"name": "attrs", "version": "2.0", "vulns": []}
    assert problems(good, bad) == (
        [
            "trio 1.0: PYSEC-2026-1, fixed in 1.2",
            "trio 1.0: PYSEC-2026-1, fixed in no version",
        ],
        [],
    )


def test_package_that_the_index_does_not_know_was_not_checked() -> None:
    """That is how an index without advisories answers for each package."""
    unknown = {"name": "trio", "skip_reason": "Dependency not found on PyPI"}
    own = {"name": "kwire", "skip_reason": "Dependency not found on PyPI"}
    assert problems(unknown, own) == ([], ["trio"])

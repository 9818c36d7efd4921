"""Check packages for known vulnerabilities: ``scripts/audit.py [--known-only] [SITE-PACKAGES]``.

By default those of this Python: in `.venv`, kwire's dependencies and the tools of its tests.
pip-audit asks PyPI for its advisories. A mirror without advisories answers for no package; then
nothing was checked, which is a failure, unless ``--known-only`` is given.
"""

import argparse
import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
OWN = ("kwire",)
"""Packages of this project, which have no advisories of their own."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--known-only", action="store_true", help="accept packages not checked")
    parser.add_argument("packages", nargs="?", type=Path, default=sysconfig.get_path("purelib"))
    arguments = parser.parse_args()
    vulnerable, unchecked = problems(report(arguments.packages))
    for line in vulnerable:
        print(line)
    if unchecked:
        print(f"not checked: {', '.join(unchecked)}")
        print(
            f"{len(unchecked)} packages have no advisories at the package index; run this where "
            "https://pypi.org answers"
        )
    elif not vulnerable:
        print("no known vulnerabilities")
    return 1 if vulnerable or (unchecked and not arguments.known_only) else 0


# Any: a report is JSON.
def report(packages: Path) -> dict[str, Any]:
    """Return pip-audit's report about the packages in a folder; exit if it makes none."""
    tool = (BIN / "uvx", "--quiet", "pip-audit", "--format", "json", "--progress-spinner", "off")
    result = subprocess.run(
        [*tool, "--path", packages], check=False, stdout=subprocess.PIPE, text=True
    )
    try:
        parsed: dict[str, Any] = json.loads(result.stdout)
    except ValueError:
        sys.exit(f"pip-audit failed with exit code {result.returncode}")
    return parsed


def problems(parsed: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return a line for each vulnerability, and the names of packages that were not checked."""
    packages = [each for each in parsed["dependencies"] if each["name"] not in OWN]
    vulnerable = [
        f"{each['name']} {each['version']}: {flaw['id']}, fixed in "
        f"{', '.join(flaw['fix_versions']) or 'no version'}"
        for each in packages
        for flaw in each.get("vulns", ())
    ]
    return vulnerable, [each["name"] for each in packages if "skip_reason" in each]


if __name__ == "__main__":
    sys.exit(main())

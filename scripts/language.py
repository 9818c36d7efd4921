"""Show where the tree breaks the language rules.

    scripts/language.py [PATH...]

It prints the lines of the files, or of the folders' files, that break a rule.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support import language  # noqa: E402


def show(folders: list[str]) -> int:
    """Print the breaches of some files and folders, or of all; return 0."""
    for path in language.files():
        if not folders or any(path == f or path.startswith(f.rstrip("/") + "/") for f in folders):
            every = [b for breaches in language.breaches(path).values() for b in breaches]
            for breach in sorted(every, key=lambda breach: breach.line):
                print(f"{path}:{breach.line}: {breach.text}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Show or count breaches of the language rules.")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files or folders to show")
    arguments = parser.parse_args()
    return show(arguments.paths)


if __name__ == "__main__":
    sys.exit(main())

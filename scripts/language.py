"""Show where the tree breaks the rules of its files: language, lengths, docstrings, imports.

    scripts/language.py [PATH...]

It prints the lines of the files, or of the folders' files, that break a rule.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support import tidy  # noqa: E402


def show(folders: list[str]) -> int:
    """Print the breaches of some files and folders, or of all; return 0."""
    for path in (path for folder in tidy.FOLDERS for path in tidy.files(folder)):
        if not folders or any(path == f or path.startswith(f.rstrip("/") + "/") for f in folders):
            for breach in sorted(tidy.breaches(tidy.read(path)), key=lambda breach: breach.line):
                print(f"{path}:{breach.line}: {breach.text}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Show or count breaches of the language rules.")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files or folders to show")
    arguments = parser.parse_args()
    return show(arguments.paths)


if __name__ == "__main__":
    sys.exit(main())

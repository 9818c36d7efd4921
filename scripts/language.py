"""Show where the tree breaks the language rules, and shrink the list of what is still allowed.

    scripts/language.py [--write] [PATH...]

Without ``--write`` it prints the lines of the files, or of the folders' files, that break a rule.
With it, it writes `tests/language_allowance.txt` anew. It refuses while a rule is broken more often
than the table allows in total: then mend what was added, which the run without ``--write`` shows.
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


def write() -> int:
    """Write the allowance as the tree is; return 1 if a total would grow."""
    allowance, counts = language.read_allowance(), language.counts()
    grown = [
        f"{rule}: {language.total(counts, rule)}, allowed are {language.total(allowance, rule)}"
        for rule in language.RULES
        if language.total(counts, rule) > language.total(allowance, rule)
    ]
    if grown:
        print("not written, there are more breaches than before:", *grown, sep="\n")
        for path, rules in counts.items():
            for rule, count in rules.items():
                if count > allowance.get(path, {}).get(rule, 0):
                    print(f"{path}: {rule} {allowance.get(path, {}).get(rule, 0)} -> {count}")
        return 1
    language.write_allowance(counts)
    print(*(f"{rule}: {language.total(counts, rule)}" for rule in language.RULES), sep=", ")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Show or count breaches of the language rules.")
    parser.add_argument("--write", action="store_true", help="write the allowance, if it shrinks")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files or folders to show")
    arguments = parser.parse_args()
    return write() if arguments.write else show(arguments.paths)


if __name__ == "__main__":
    sys.exit(main())

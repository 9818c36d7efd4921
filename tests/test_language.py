"""The rules of names and functions notice breaches, and the subjects of commits keep theirs.

The rules are in CONTRIBUTING.md, "Language"; `test_tidy.py` applies those for files.
"""

import ast
import re
import subprocess

import pytest

from tests.support import language
from tests.support.tidy import ROOT

# The rules themselves ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("found = 1", 1),
        ("self._asked = kept", 1),
        ("def f(given, *, known=()): ...", 2),
        ("for one in many: ...", 1),
        ("class A:\n    held: int = 0", 1),
        ("found_count = asked_at = replica = 1", 0),
        ("f(known=1)", 0),
    ],
)
def test_names_are_noticed_where_they_are_given(source: str, count: int) -> None:
    assert len(list(language.names(ast.walk(ast.parse(source))))) == count


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("def committed(): ...", 1),
        ("async def _written(): ...", 1),
        ("written: Callable[[int], None]", 1),
        ("async def stop(self):\n    await self.stopped.wait()", 1),
        ("async def drain(self):\n    while self.open:\n        await self.changed.wait()", 1),
        ("async def wait_stopped(self):\n    await self.stopped.wait()", 0),
        ("async def stop(self):\n    await self.flush()\n    await self.stopped.wait()", 0),
        ("def on_committed(): ...", 0),
        ("def is_fenced(): ...", 0),
        ("def feed(): ...", 0),
        ("def read(): ...", 0),
    ],
)
def test_functions_are_noticed_that_are_no_verbs_or_hide_a_wait(source: str, count: int) -> None:
    assert len(list(language.functions(ast.walk(ast.parse(source))))) == count


# The subjects of commits ---------------------------------------------------------------------
LAST_FREE_COMMIT = "218fdd9"
"""The last commit before the rule."""
OLD_SUBJECTS = {
    "metrics: show them on the clients' host, with the process and its readiness",
}
"""Subjects that broke the rule before a test held it."""
SUBJECT = re.compile(r"[a-z0-9_./-]+(, [a-z0-9_./-]+)*: [^A-Z\s].*[^.\s]")
SUBJECT_MAX = 72


def git(*arguments: str) -> "subprocess.CompletedProcess[str]":
    # Git refuses a clone that belongs to another user; here its history is only read.
    command = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def subject_is_plain(subject: str) -> bool:
    """Whether a subject is `area: imperative summary` of at most 72 characters."""
    return len(subject) <= SUBJECT_MAX and SUBJECT.fullmatch(subject) is not None


def test_subjects_of_commits_are_plain() -> None:
    """A subject is `area: imperative summary`, in lower case, of at most 72 characters.

    It needs the history. A clone without it fails, and says how to get it: continuous integration
    clones in full, and a rule that a shallow clone passes by itself would hold nothing. A copy of
    the files that is no clone has no commits to judge; there the test is skipped, with its reason
    in the summary of the run.
    """
    if not (ROOT / ".git").exists():
        pytest.skip("no git clone: the subjects of its commits cannot be judged")
    if git("merge-base", "--is-ancestor", LAST_FREE_COMMIT, "HEAD").returncode != 0:
        pytest.fail(
            f"the history back to {LAST_FREE_COMMIT} is not in this clone, so that the subjects of "
            "commits cannot be judged; fetch it with `git fetch --unshallow`",
            pytrace=False,
        )
    log = git("log", "--no-merges", "--format=%s", f"{LAST_FREE_COMMIT}..HEAD")
    subjects = set(log.stdout.splitlines())
    assert log.returncode == 0
    assert {s for s in subjects if not subject_is_plain(s)} == OLD_SUBJECTS


@pytest.mark.parametrize(
    ("subject", "plain"),
    [
        ("log: sync a segment before its index", True),
        ("controller, net: name what waits", True),
        ("replica: shrink the ISR through AlterPartition", True),
        ("A comment lies where it belongs", False),
        ("log: Sync a segment", False),
        ("log: sync a segment.", False),
        ("log: " + "sync " * 14, False),
    ],
)
def test_plain_subjects(subject: str, plain: bool) -> None:
    assert subject_is_plain(subject) == plain

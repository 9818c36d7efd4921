"""The shop in examples/: its tests pass, and find each of its planted bugs.

The tests bring their own broker, so ``--broker`` makes no difference to them.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
BUGS = re.findall(
    r"^\| `([a-z-]+)` .*?`(test_\w+)`", (EXAMPLES / "README.md").read_text(), re.MULTILINE
)
"""Each bug, and the test that finds it, as the page for readers lists them."""


def run(bug: str, *options: str) -> str:
    plugins = ("-p", "kwire.testing.pytest_plugin", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rf", *plugins, *options],
        cwd=EXAMPLES,
        env={**os.environ, "SHOP_BUG": bug, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout


def test_the_shop_passes_its_tests() -> None:
    """The sample application of examples/ with its tests"""
    output = run("")
    assert re.search(r"^\d+ passed in", output, re.MULTILINE), output[-5000:]


@pytest.mark.parametrize(
    ("bug", "test"),
    [
        pytest.param(bug, test, id=bug, marks=[pytest.mark.long] if number > 1 else [])
        for number, (bug, test) in enumerate(BUGS)
    ],
)
def test_each_bug_is_found_by_its_test(bug: str, test: str) -> None:
    """The bugs that the tests of the sample application find"""
    output = run(bug, "-k", test)
    assert re.search(rf"^FAILED \S+::{test}\b", output, re.MULTILINE), output[-5000:]
    assert re.search(r"^1 failed, \d+ deselected in", output, re.MULTILINE), output[-5000:]


def test_the_page_lists_every_bug() -> None:
    """The list of the bugs of the sample application"""
    planted = re.findall(
        r'^    "([a-z-]+)":', (EXAMPLES / "shop/bugs.py").read_text(), re.MULTILINE
    )
    used = re.findall(
        r'has_bug\("([a-z-]+)"\)', "".join(p.read_text() for p in EXAMPLES.rglob("shop/*.py"))
    )
    assert sorted(bug for bug, _ in BUGS) == sorted(planted) == sorted(set(used))

"""The examples of docs/test-brokers.md, run unchanged by pytest with the plugin.

They bring their own brokers, so ``--broker`` makes no difference to them.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "test-brokers.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_examples(tmp_path: Path) -> None:
    """The examples of docs/test-brokers.md: retries, rebalances, outages, transactions"""
    for number, example in enumerate(EXAMPLES):
        (tmp_path / f"test_example_{number}.py").write_text(example)
    tests = sum(example.count("\ndef test_") for example in EXAMPLES)
    releases = 3  # of the test that runs with several
    test_count = tests - 1 + releases
    command = [sys.executable, "-m", "pytest", "-q", "-p", "kwire.testing.pytest_plugin"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert re.search(rf"^{test_count} passed", done.stdout, re.MULTILINE), done.stdout

"""A small volume for a broker's data, which a test can fill.

There are two ways, tried in this order: root mounts a tmpfs; any other user mounts one in a new
user namespace, which a sleeping process holds open, and the broker starts inside it. If neither is
permitted the test fails: the rules for a full disk are also tested on a simulated one
(`tests/log/test_full_disk.py`), but with a whole broker only here.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def small_volume(path: Path, megabytes: int) -> Iterator[tuple[str, ...]]:
    """Mount a volume at ``path``; yield the beginning of a command line that can access it."""
    path.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)]
    refused = subprocess.run(mount, capture_output=True, text=True, check=False)
    if not refused.returncode:
        try:
            yield ()
        finally:
            subprocess.run(["umount", "--lazy", str(path)], check=True)
        return
    inside = f"{' '.join(mount)} && echo mounted && exec sleep infinity"
    with subprocess.Popen(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inside],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stderr is not None
        try:
            if holder.stdout.readline() != b"mounted\n":
                reason = f"{refused.stderr.strip()}; {holder.stderr.read().decode().strip()}"
                raise AssertionError(f"no small volume can be mounted here: {reason}")
            enter = ("nsenter", f"--target={holder.pid}", "--user", "--mount")
            yield (*enter, "--preserve-credentials", f"--wd={path.parent}")
        finally:
            holder.kill()

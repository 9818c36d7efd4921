"""A kwire node whose wall clock a file shifts: the first argument, then those of ``kwire``.

The file holds the shift in milliseconds as a signed number of eight bytes (:func:`set_shift`). A
change is a jump of the wall clock; the monotonic clock goes on.
"""

from __future__ import annotations

import mmap
import struct
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_SHIFT_MS: Final = struct.Struct("=q")


def set_shift(path: Path, shift_ms: int) -> None:
    """Shift the wall clock of the node that has this file, which is created if it is missing."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.write(_SHIFT_MS.pack(shift_ms))


def main(path: str, *arguments: str) -> None:
    """Run a node."""
    sys.path.insert(0, str(ROOT))
    from kwire import cli
    from kwire.clock import SystemClock

    with Path(path).open("rb") as file:
        shift = mmap.mmap(file.fileno(), _SHIFT_MS.size, prot=mmap.PROT_READ)
    true_ms = SystemClock.now_ms

    def now_ms(self: SystemClock) -> int:
        return true_ms(self) + int(_SHIFT_MS.unpack_from(shift)[0])

    SystemClock.now_ms = now_ms  # type: ignore[method-assign]
    cli.main(arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])

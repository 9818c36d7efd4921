"""Walks over the records of a batch, in C if the extension module is built, else in Python.

Rules:

* ``kwire/_speedups.c`` is optional: :mod:`kwire._fallbacks` does the same, 50 to 100 times slower.
  The environment variable ``KWIRE_SPEEDUPS=off`` selects it even if both exist.
* The payload is decompressed. Whatever its bytes are, the functions raise only BadRecords. They
  copy no more than the payload, and a record that is re-encoded grows by at most 14 bytes.
* In C, a call with more than 64 KB releases the GIL, so a thread can make it. An :class:`OffsetMap`
  serves one thread at a time: a second thread gets RuntimeError.
"""

import os
from typing import TYPE_CHECKING, Final

from kwire.records.walked import CheckedRecords, Retained

__all__ = [
    "IMPLEMENTATION",
    "CheckedRecords",
    "OffsetMap",
    "Retained",
    "check_records",
    "find_retained",
    "latest_records",
    "rewrite",
]

if TYPE_CHECKING:
    from kwire._fallbacks import (
        OffsetMap,
        check_records,
        find_retained,
        latest_records,
        rewrite,
    )

    IMPLEMENTATION: Final[str] = ""
    """``c`` or ``python``."""
else:
    try:
        if os.environ.get("KWIRE_SPEEDUPS") == "off":
            raise ImportError
        from kwire._speedups import (
            IMPLEMENTATION,
            OffsetMap,
            check_records,
            find_retained,
            latest_records,
            rewrite,
        )
    except ImportError:
        from kwire._fallbacks import (
            IMPLEMENTATION,
            OffsetMap,
            check_records,
            find_retained,
            latest_records,
            rewrite,
        )

"""The types of the extension module ``_speedups.c``; :mod:`kwire._fallbacks` documents them."""

from collections.abc import Sequence
from typing import Final, final

from kwire.records.header import Buffer
from kwire.records.walked import CheckedRecords, Retained

IMPLEMENTATION: Final[str]

@final
class OffsetMap:
    def __init__(self, memory_bytes: int, load_factor: float) -> None: ...
    @property
    def capacity(self) -> int: ...
    def __len__(self) -> int: ...
    def put(self, key: Buffer, offset: int, /) -> None: ...
    def get(self, key: Buffer, /) -> int: ...
    def put_records(
        self, payload: Buffer, count: int, base_offset: int, first_offset: int
    ) -> bool: ...

def check_records(payload: Buffer, count: int, *, keys: bool) -> CheckedRecords: ...
def find_retained(
    payload: Buffer,
    count: int,
    base_offset: int,
    offsets: OffsetMap,
    latest: int,
    keep_tombstones: bool,
) -> Retained: ...
def latest_records(
    buf: Buffer, pos: int, offset: int, latest: dict[bytes, bytes | None], limit: int
) -> tuple[int, int]: ...
def rewrite(payload: Buffer, ranges: Sequence[tuple[int, int]], timestamp_shift: int) -> bytes: ...

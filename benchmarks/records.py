"""Measure the cost of validating and stamping one 16 KB batch.

    python benchmarks/records.py [--rounds N]

Prints the best of five rounds in CPU time; on a shared 2-core machine, Python 3.11, 20,000 calls:
parse 0.4 us, check_produced 2.1 us (CRC 0.9), check_timestamps 0.2 us, stamp 0.4 us.

With four other processes at work, twice as slow: decompressed and walked on the loop (check_here),
without a codec 14 us, with snappy 50, lz4 70, gzip 90, zstd 180. The walks themselves are in
docs/decisions/0029.
"""

import argparse
import sys
import time
import timeit
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kwire import _fallbacks, speedups
from kwire.records import build, compression, header, validate
from kwire.replica.unpacking import Unpacker

BATCH = build.batch(
    [build.New(None, bytes(1000))] * 16,
    timestamp_ms=1_700_000_000_000,
    producer_id=1,
    producer_epoch=0,
    base_sequence=0,
)
SMALL_RECORDS = [build.New(b"key-%05d" % i, b"value %05d " % i * 7) for i in range(160)]
VIEW = memoryview(b"x" * 40 + BATCH)[40:]


def measure(name: str, rounds: int, call: Callable[[], object]) -> None:
    best = min(timeit.repeat(call, timer=time.process_time, number=rounds, repeat=5)) / rounds
    print(f"{name:24} {best * 1e6:6.2f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the checks of one batch.")
    parser.add_argument("--rounds", type=int, default=20_000)
    rounds = parser.parse_args().rounds
    head = header.parse(VIEW)
    measure("parse", rounds, lambda: header.parse(VIEW))
    measure("crc_ok", rounds, lambda: header.crc_ok(VIEW, 0, head))
    measure(
        "check_produced", rounds, lambda: validate.check_produced(VIEW, max_message_bytes=1 << 20)
    )
    measure(
        "check_timestamps", rounds, lambda: validate.check_timestamps(head, 1, 1 << 62, 1 << 62)
    )
    measure("stamp", rounds, lambda: build.stamp(VIEW, base_offset=5, leader_epoch=1))
    measure_records(rounds // 10)


def measure_records(rounds: int) -> None:
    """Measure the check of a batch of 160 records in each codec, as the loop does it."""
    unpacker = Unpacker()
    for codec, name in enumerate(compression.NAMES):
        batch = build.batch(SMALL_RECORDS, timestamp_ms=1_700_000_000_000, compression=codec)
        head = header.parse(batch)
        measure(f"check_here {name}", rounds, partial(unpacker.check_here, batch, head, keys=False))
    for code in (speedups, _fallbacks):
        measure_walks(code, rounds)


def measure_walks(code: ModuleType, rounds: int) -> None:
    """Measure each walk over 160 records; the map has all their keys, and every second stays."""
    batch = build.batch(SMALL_RECORDS, timestamp_ms=0)
    payload, count = batch[header.HEADER_SIZE :], len(SMALL_RECORDS)
    offsets = code.OffsetMap(1 << 20, 0.9)
    offsets.put_records(payload, count, 0, 0)
    for number in range(0, count, 2):
        offsets.put(SMALL_RECORDS[number].key, count)
    ranges = code.find_retained(payload, count, 0, offsets, count, True).ranges
    walks: dict[str, Callable[[], object]] = {
        "check_records": partial(code.check_records, payload, count, keys=False),
        "put_records": partial(offsets.put_records, payload, count, 0, 0),
        "find_retained": partial(code.find_retained, payload, count, 0, offsets, count, True),
        "rewrite": partial(code.rewrite, payload, ranges, 1),
        "latest_records": lambda: code.latest_records(batch, 0, 0, {}, 1 << 20),
    }
    for name, walk in walks.items():
        measure(f"{name} in {code.IMPLEMENTATION}", rounds, walk)


if __name__ == "__main__":
    main()

"""Compare the implementations of kwire.speedups on damaged payloads.

    python -m tests.support.speedups.fuzz [--count N] [--seed N]

Each payload is one of a few records with a few changes. Both implementations must give the same
results or the same message, and leave the same map. A difference prints the seed and the payload.
"""

import argparse
import random
from collections.abc import Callable
from types import ModuleType

from kwire.records.build import encode_record
from kwire.records.iterate import BadRecords
from tests.support.speedups.implementations import implementation

KEYS = (None, b"", b"a", b"b", b"long key " * 9)
VALUES = (None, b"", b"value", bytes(70), bytes(9000))
HEADERS = ((), ((b"h", b"v"),), ((b"", None), (b"i", bytes(65))))
MAP_BYTES = 24 * 8
NUMBERS = (
    *(b"\x00", b"\x01", b"\x02", b"\x03", b"\x7f", b"\x80\x00"),
    *(b"\xff" * 4 + b"\x0f", b"\xff" * 4 + b"\x10"),  # 32 bits, and 33
    *(b"\x80" * 9 + b"\x01", b"\x80" * 9 + b"\x02", b"\x80" * 11),
)

Result = object


def payload_of(source: random.Random) -> tuple[bytes, int]:
    """Return a payload, damaged in most cases, and the number of its records."""
    count = source.choice((0, 1, 1, 2, 3, 5, 300))
    records = [
        encode_record(
            source.choice((0, 1, -1, 64, 1 << 40, (1 << 63) - 1, -(1 << 63))),
            source.choice((i, i, i, -1, (1 << 31) - 1)),
            source.choice(KEYS),
            source.choice(VALUES[: 5 if count < 9 else 3]),
            source.choice(HEADERS),
        )
        for i in range(count)
    ]
    data = bytearray(b"".join(records))
    for _ in range(source.choice((0, 1, 1, 1, 2, 3, 8))):
        at = min(source.randrange(len(data) + 1), source.choice((40, 400, 1 << 20)))
        match source.randrange(5):
            case 0 if at < len(data):
                data[at] ^= 1 << source.randrange(8)
            case 1 if at < len(data):
                data[at] = source.randrange(256)
            case 2:
                data[at:at] = source.choice(NUMBERS)
            case 3:
                number = source.choice(NUMBERS)
                data[at : at + len(number)] = number
            case _:
                del data[at : at + source.choice((1, 1, 2, 9, 1 << 20))]
    return bytes(data), source.choice((count, count, count, count + 1, count - 1, 1 << 40))


def outcome(call: Callable[[], Result]) -> Result:
    try:
        return call()
    except BadRecords as error:
        return str(error)


def results(code: ModuleType, payload: bytes, count: int, seed: int) -> list[Result]:
    """Return what each function of an implementation makes of a payload."""
    source = random.Random(seed)
    base = source.choice((0, 7, (1 << 63) - 3, -5))
    first, latest = source.choice((0, 2, 9)), base + source.choice((-1, 0, 1, 400))
    latest = min(latest, (1 << 63) - 1)
    shift = source.choice((0, 1, -1, 1 << 33, -(1 << 62)))
    ranges = [(source.randrange(9), source.randrange(60)), (source.randrange(70), len(payload))]
    offsets = code.OffsetMap(MAP_BYTES, source.choice((0.5, 1.0)))
    answers = [
        outcome(lambda: code.check_records(payload, count, keys=bool(seed & 1))),
        outcome(lambda: offsets.put_records(payload, count, base, first)),
        [len(offsets), *(offsets.get(key) for key in KEYS if key is not None)],
    ]
    retained = outcome(
        lambda: code.find_retained(payload, count, base, offsets, latest, bool(seed & 2))
    )
    if not isinstance(retained, str):
        ranges = retained.ranges  # type: ignore[attr-defined]
    answers += [retained, outcome(lambda: code.rewrite(payload, ranges, shift))]
    return answers


def compare(seed: int) -> bool:
    """Compare both implementations on the payload of a seed; return whether it is undamaged."""
    payload, count = payload_of(random.Random(seed))
    in_c = results(implementation("c"), payload, count, seed)
    in_python = results(implementation("python"), payload, count, seed)
    assert in_c == in_python, f"seed {seed}: {payload.hex()} {count}: {in_c} {in_python}"
    return not isinstance(in_c[0], str)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.count)
    print(f"{options.count} payloads, {sum(map(compare, seeds))} of them undamaged, no difference")


if __name__ == "__main__":
    main()

"""Measure how fast a member of a share group gets records, on brokers that run already.

    python benchmarks/shares.py [--records N] [--batch N] [--fetched N] ADDRESS=PID [ADDRESS=PID]...

One member fetches all records of a topic and accepts them with its next fetch, as the Java client
does. The brokers take turns; for each, the best of the rounds is shown: records per second, and CPU
microseconds of the broker's process per record. docs/performance.md has the results.
"""

import argparse
import sys
import time
import uuid
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from compat_tests.share.members import (
    ShareMember,
    configure_group,
    create_topic,
    produce,
)

ROUNDS = 5
ACCEPT = 1
TICK_S = 0.01


class Result(NamedTuple):
    """The cost of one round."""

    records_per_s: float
    cpu_us: float
    """CPU time of the broker's process for each record."""


def cpu_seconds(pid: int) -> float:
    """Return the user and system CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def measure(address: str, pid: int, records: int, batch: int, fetched: int) -> Result:
    name = uuid.uuid4().hex
    topic_id = create_topic(address, name)
    configure_group(address, name, share_auto_offset_reset="earliest")
    for _ in range(records // batch):
        produce(address, name, *[b"x" * 100] * batch)
    member = ShareMember.join(address, name, name, topic_id)
    started, cpu = time.monotonic(), cpu_seconds(pid)
    count = 0
    pending: dict[tuple[int, int], list[int]] = {}
    while count < records or pending:
        wait_ms = 500 if count < records else 0
        row = member.fetch(acknowledge=pending, max_wait_ms=wait_ms, max_records=fetched)
        assert row is not None
        assert not row.error_code
        assert not row.acknowledge_error_code
        pending = {(each.first_offset, each.last_offset): [ACCEPT] for each in row.acquired_records}
        count += sum(last - first + 1 for first, last in pending)
    elapsed_s, cpu_s = time.monotonic() - started, cpu_seconds(pid) - cpu
    member.close()
    return Result(records / elapsed_s, cpu_s / records * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=20, help="records of a produced batch")
    parser.add_argument("--fetched", type=int, default=20, help="records of a fetch")
    parser.add_argument("brokers", nargs="+", metavar="ADDRESS=PID")
    options = parser.parse_args()
    brokers = [each.rsplit("=", 1) for each in options.brokers]
    results: dict[str, list[Result]] = {address: [] for address, _ in brokers}
    for _ in range(ROUNDS):
        for address, pid in brokers:
            result = measure(address, int(pid), options.records, options.batch, options.fetched)
            results[address].append(result)
    for address, rounds in results.items():
        fastest = max(each.records_per_s for each in rounds)
        print(f"{address}: {fastest:,.0f} records/s, {min(r.cpu_us for r in rounds):.1f} us CPU")


if __name__ == "__main__":
    main()

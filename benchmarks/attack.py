"""Measure what attacks by clients without an account cost a client that has one.

    python benchmarks/attack.py [--only NAME,...] [--seconds N] [--peer kwire|kafka] [--first]

A client that has logged in writes a small record every few milliseconds and waits for its
acknowledgement. For each attack (``compat_tests/security/attacks.py``) the table has the median and
the 99th percentile of these waits in milliseconds, the ratio of the latter to the same time without
an attack, the attack's steps per second and the largest memory of the broker. Attacks are as fast
as one process can make them; ACLs change a hundred times a second. The attacker has the lowest
priority, so that on few cores the broker's delay is measured and not the machine's. With
``--first`` (as root) the kernel runs the broker and the client before everything else: on a busy
machine, a broker that works hard otherwise waits for a core itself.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from contextlib import closing
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from compat_tests.security.attacks import (  # noqa: E402
    ATTACKS,
    Target,
    connect_alice,
    produce,
    run_target,
)

PAUSE_S: Final = 0.003
WARM_UP_S: Final = 1.0
PACES: Final = {"acl_changes": 100}
"""Steps a second of the attacks that are not as fast as possible."""


class Waits(NamedTuple):
    """The waits of the client, in milliseconds, and the broker's largest memory."""

    median: float
    p99: float
    memory_mb: float


def measure(target: Target, seconds: float, is_first: bool) -> Waits:
    """Write records for some time, in a process of its own: no other thread delays the client."""
    results: multiprocessing.Queue[Waits] = multiprocessing.Queue()
    client = multiprocessing.Process(target=_measure, args=(target, seconds, is_first, results))
    client.start()
    result = results.get(timeout=seconds + 60)
    client.join()
    return result


def _measure(
    target: Target, seconds: float, is_first: bool, results: "multiprocessing.Queue[Waits]"
) -> None:
    if is_first:
        for process in (target.pid, 0):
            os.sched_setscheduler(process, os.SCHED_RR, os.sched_param(1))
    waits, memory_mb = [], 0.0
    with connect_alice(target) as alice:
        for _ in range(200):
            assert produce(alice) == 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            started = time.perf_counter()
            assert produce(alice) == 0
            waits.append(time.perf_counter() - started)
            if len(waits) % 100 == 0:
                memory_mb = max(memory_mb, target.resident_mb)
            time.sleep(PAUSE_S)
    waits.sort()
    at = (len(waits) // 2, len(waits) * 99 // 100)
    results.put(Waits(waits[at[0]] * 1000, waits[at[1]] * 1000, memory_mb))


def run_attack(
    name: str, target: Target, stop: Event, counts: "multiprocessing.Queue[int]"
) -> None:
    """Attack until told to stop, and report the number of steps."""
    os.nice(19)
    count, pace = 0, PACES.get(name)
    started = time.monotonic()
    with closing(ATTACKS[name](target)) as attack:
        while not stop.is_set():
            next(attack)
            count += 1
            if pace:
                time.sleep(max(0.0, started + count / pace - time.monotonic()))
    counts.put(count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default=",".join(ATTACKS))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--peer", default="kwire")
    parser.add_argument("--first", action="store_true")
    options = parser.parse_args()
    print(f"{'attack':28}{'median ms':>10}{'p99 ms':>8}{'ratio':>7}{'steps/s':>9}{'MB':>6}")
    for name in options.only.split(","):
        with (
            tempfile.TemporaryDirectory() as folder,
            run_target(options.peer, Path(folder)) as target,
        ):
            before = measure(target, options.seconds, options.first)
            stop = multiprocessing.Event()
            counts: multiprocessing.Queue[int] = multiprocessing.Queue()
            arguments = (name, target, stop, counts)
            attacker = multiprocessing.Process(target=run_attack, args=arguments)
            attacker.start()
            time.sleep(WARM_UP_S)
            during = measure(target, options.seconds, options.first)
            stop.set()
            steps = counts.get(timeout=60)
            attacker.join()
        print(
            f"{name:28}{during.median:10.2f}{during.p99:8.2f}{during.p99 / before.p99:7.1f}"
            f"{steps / (options.seconds + WARM_UP_S):9.0f}{during.memory_mb:6.0f}",
            f"  (without: {before.median:.2f}, {before.p99:.2f}, {before.memory_mb:.0f} MB)",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""Measure the cost of one raft event at a leader with few and many brokers waiting for metadata.

    python benchmarks/observers.py [--rounds N]

On a shared 2-core machine, Python 3.11: 29 us for a Fetch that is held, with 10 other brokers
waiting as with 1,000 (before held Fetches were kept by deadline: 2.3 ms with 1,000).
"""

import argparse
import sys
import timeit
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kwire.raftmeta.raft.events import Received
from tests.support.raftmeta.observers import fetch_of, with_observers


def seconds_an_event(observers: int, rounds: int) -> float:
    """Return the seconds of one more held Fetch, the best of several rounds."""
    raft = with_observers(observers)
    request = fetch_of(50_000, raft)
    event = Received("token", request)
    times = timeit.repeat(lambda: raft.step(event, 0.31, 0), number=rounds, repeat=5)
    return min(times) / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one raft event at a leader.")
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    few, many = seconds_an_event(10, rounds), seconds_an_event(1000, rounds)
    print(
        f"10 brokers {few * 1e6:.0f} us, 1,000 brokers {many * 1e6:.0f} us: {many / few:.1f} times"
    )


if __name__ == "__main__":
    main()

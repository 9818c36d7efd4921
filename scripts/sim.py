"""Runs the simulation of the metadata quorum, or of its controller, for as long as one likes.

``python scripts/sim.py --seconds 600`` runs seed after seed on every core; ``--seed 17`` runs
one and prints its trace when it fails; ``--controller`` simulates what the controller decides
instead of how the quorum agrees.  Exit code 1: a seed failed.
"""

import argparse
import multiprocessing
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def run_controller(task: tuple[int, int, int]) -> tuple[int, int, str]:
    """One seed of the controller's."""
    from kwire.testing.controller_sim import simulate
    from kwire.testing.raft_sim import SimFailure

    seed, steps, _ = task
    try:
        simulate(seed, steps)
    except SimFailure as failure:
        return seed, 0, str(failure)
    return seed, steps, ""


def run(task: tuple[int, int, int]) -> tuple[int, int, str]:
    """One seed: how many events it took, and what went wrong."""
    from kwire.testing.raft_sim import SimFailure, simulate

    seed, events, trace_length = task
    try:
        return seed, simulate(seed, events, trace_length=trace_length).scheduler.events, ""
    except SimFailure as failure:
        return seed, 0, str(failure)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--controller", action="store_true", help="simulate the controller")
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--first", type=int, default=1, help="first seed of a series")
    parser.add_argument("--events", type=int, default=10_000, help="events of each seed")
    parser.add_argument("--total", type=int, default=0, help="stop after so many events in all")
    parser.add_argument("--seconds", type=float, default=60.0, help="stop after so long")
    parser.add_argument("--trace", type=int, default=300, help="lines of trace on failure")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    started = time.monotonic()
    one = run_controller if options.controller else run
    if options.seed is not None:
        _, events, failure = one((options.seed, options.events, options.trace))
        print(failure or f"seed {options.seed}: {events} events, nothing wrong")
        return 1 if failure else 0
    total = seeds = 0
    following = options.first
    with multiprocessing.Pool(options.jobs) as pool:
        while time.monotonic() - started < options.seconds:
            batch = range(following, following + 4 * options.jobs)
            following = batch.stop
            tasks = [(seed, options.events, options.trace) for seed in batch]
            for _seed, events, failure in pool.imap_unordered(one, tasks):
                if failure:
                    print(failure)
                    return 1
                total += events
                seeds += 1
            if options.total and total >= options.total:
                break
    seconds = time.monotonic() - started
    print(f"{seeds} seeds, {total} events in {seconds:.1f} s, nothing wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

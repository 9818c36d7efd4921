"""Runs the simulation of the metadata quorum, its controller or the logs as long as one likes.

``python scripts/sim.py --seconds 600`` runs seed after seed on every core; ``--seed 17`` runs
one and prints its trace when it fails; ``--controller`` simulates what the controller decides
instead of how the quorum agrees, ``--logs`` a broker's logs, their threads and the loss of power.
``--rotate`` begins at a seed that no run before had.  Exit code 1: a seed failed.

``--detect`` makes each mistake of the mutation tables instead and writes into docs/testing.md how
many seeds and events it took to notice it.
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


def run_logs(task: tuple[int, int, int]) -> tuple[int, int, str]:
    """One seed of the logs'."""
    import logging

    from kwire.testing.log_sim import LogSimFailure, simulate

    logging.disable(logging.CRITICAL)
    seed, steps, _ = task
    steps = min(steps, 300)  # many short lives: each ends in a loss of power
    try:
        simulate(seed, steps)
    except LogSimFailure as failure:
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


def detect(task: tuple[bool, str]) -> tuple[str, str, int, int]:
    """Make one mistake: its name and text, and the seeds and events until it was noticed."""
    from kwire.testing import controller_mutations, raft_mutations
    from kwire.testing.controller_sim import ControllerSim
    from kwire.testing.raft_sim import RaftSim

    is_controller, name = task
    module = controller_mutations if is_controller else raft_mutations
    (mutation,) = (one for one in module.MUTATIONS if one.name == name)
    each = 400 if is_controller else 4000
    total = 0
    with mutation.active():
        for count, seed in enumerate(range(mutation.first_seed, mutation.first_seed + 60), 1):
            sim: ControllerSim | RaftSim
            if is_controller:
                sim = ControllerSim.of(seed)
            else:
                sim = RaftSim.of(seed, trace_length=10)
            try:
                sim.run(each)
            except Exception:  # noqa: BLE001 - whatever it is, the mistake was noticed
                taken = sim.taken if isinstance(sim, ControllerSim) else sim.scheduler.events
                return name, mutation.mistake, count, total + taken
            total += each
    return name, mutation.mistake, 0, total


def detect_all(options: argparse.Namespace) -> int:
    """Write a table of all mistakes; 1 if one was not noticed."""
    from kwire.testing import controller_mutations, raft_mutations

    kind = "controller" if options.controller else "raft"
    module = controller_mutations if options.controller else raft_mutations
    tasks = [(options.controller, mutation.name) for mutation in module.MUTATIONS]
    with multiprocessing.Pool(options.jobs) as pool:
        rows = list(pool.imap(detect, tasks))
    unit = "steps" if options.controller else "events"
    lines = [f"| mutation | mistake | seeds | {unit} until it is noticed |", "|---|---|---|---|"]
    for name, mistake, seeds, taken in rows:
        lines.append(f"| {name} | {mistake} | {seeds or 'none'} | {taken} |")
    page = ROOT / "docs" / "testing.md"
    begin, end = f"<!-- {kind} mutations -->\n", "<!-- end -->\n"
    head, rest = page.read_text().split(begin)
    tail = rest.split(end, 1)[1]
    page.write_text(head + begin + "\n".join(lines) + "\n" + end + tail)
    return 1 if any(not seeds for _, _, seeds, _ in rows) else 0


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--controller", action="store_true", help="simulate the controller")
    parser.add_argument("--detect", action="store_true", help="make mistakes; write the table")
    parser.add_argument("--logs", action="store_true", help="simulate a broker's logs")
    parser.add_argument("--rotate", action="store_true", help="other seeds in each run")
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
    one = run_controller if options.controller else run_logs if options.logs else run
    if options.detect:
        return detect_all(options)
    if options.seed is not None:
        _, events, failure = one((options.seed, options.events, options.trace))
        print(failure or f"seed {options.seed}: {events} events, nothing wrong")
        return 1 if failure else 0
    total = seeds = 0
    following = int(time.time()) if options.rotate else options.first
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

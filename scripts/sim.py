"""Run simulations: of the metadata quorum, its controller, ISR changes, a whole cluster, the logs.

``python scripts/sim.py --seconds 600`` runs seed after seed on every core; ``--seed 17`` runs
one and prints its trace when it fails. The default is the quorum; ``--controller`` simulates the
controller's decisions, ``--isr`` ISR changes that overtake the metadata, ``--logs`` a broker's
logs, their threads and the loss of power, ``--replication`` a cluster of whole nodes with their
replicas, coordinators and clients. ``--rotate`` begins at a seed that no earlier run had. Exit code
1: a seed failed.

``--detect`` makes each mistake of the mutation tables instead, or those that it names, and writes
to docs/simulation.md after how many seeds and events it was detected. A seed that fails without the
mistake as well detects nothing.

The first line of a failure is its seed, also of one that no check foresaw.
"""

import argparse
import logging
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.raft.mutations import Mutation

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def run_controller(task: tuple[int, int, int]) -> tuple[int, int, str]:
    """Run one seed of the controller's simulation."""
    from simulation.controller.sim import simulate
    from simulation.raft.sim import SimFailure

    seed, steps, _ = task
    try:
        simulate(seed, steps)
    except SimFailure as failure:
        return seed, 0, str(failure)
    return seed, steps, ""


def run_isr(task: tuple[int, int, int]) -> tuple[int, int, str]:
    """Run one seed of the simulation of ISR changes."""
    import logging

    from simulation.isr.sim import simulate
    from simulation.raft.sim import SimFailure

    logging.disable(logging.CRITICAL)
    seed, steps, trace_length = task
    steps = min(steps, 2_000)  # Short runs, because the faults of each are more or less frequent.
    try:
        simulate(seed, steps, trace_length=trace_length)
    except SimFailure as failure:
        return seed, 0, str(failure)
    return seed, steps, ""


def run_logs(task: tuple[int, int, int]) -> tuple[int, int, str]:
    """Run one seed of the logs' simulation; even seeds have compacted logs."""
    import logging

    from simulation.log.sim import COMPACTED, CONFIG, LogSimFailure, simulate

    logging.disable(logging.CRITICAL)
    seed, steps, _ = task
    # Short runs, because each ends in a loss of power. A compaction pass makes many calls.
    config, longest = (CONFIG, 300) if seed % 2 else (COMPACTED, 800)
    steps = min(steps, longest)
    try:
        simulate(seed, steps, config)
    except LogSimFailure as failure:
        return seed, 0, str(failure)
    return seed, steps, ""


def run_replication(task: tuple[int, int, int]) -> tuple[int, int, str]:
    """Run one seed of the replication's simulation."""
    import logging

    from simulation.replication.sim import ReplicationSimFailure, simulate_replication

    logging.disable(logging.CRITICAL)
    seed, events, _ = task
    try:
        sim = simulate_replication(seed, max(1, events // EVENTS_A_FAULT))
    except ReplicationSimFailure as failure:
        return seed, 0, str(failure)
    return seed, sim.events, ""


def run(task: tuple[int, int, int]) -> tuple[int, int, str]:
    """Run one seed of the quorum's simulation; return it, its event count and its failure text."""
    from simulation.raft.sim import SimFailure, simulate

    seed, events, trace_length = task
    try:
        return seed, simulate(seed, events, trace_length=trace_length).scheduler.events, ""
    except SimFailure as failure:
        return seed, 0, str(failure)


RUNS: dict[str, Callable[[tuple[int, int, int]], tuple[int, int, str]]] = {
    "controller": run_controller,
    "isr": run_isr,
    "logs": run_logs,
    "raft": run,
    "replication": run_replication,
}


def run_seed(task: tuple[str, int, int, int]) -> tuple[int, int, str]:
    """Run one seed of a kind of simulation; any exception is the failure of this seed."""
    kind, seed, events, trace_length = task
    try:
        return RUNS[kind]((seed, events, trace_length))
    except Exception:  # noqa: BLE001 - its seed would be lost
        return seed, 0, traceback.format_exc()


EVENTS_A_FAULT = 100
"""The approximate number of events of one fault in a simulation of replication."""


def table_of(kind: str) -> "tuple[Mutation, ...]":
    """Return the mistakes that a simulation must detect."""
    from simulation.controller.mutations import MUTATIONS as CONTROLLER
    from simulation.raft.mutations import MUTATIONS as RAFT
    from simulation.replication.mutations.table import MUTATIONS as REPLICATION

    tables = {
        "controller": CONTROLLER,
        "raft": RAFT,
        "replication": REPLICATION,
    }
    return tables[kind]


def attempt(kind: str, seed: int, stage: str = "") -> tuple[bool, int]:
    """Run one seed; return whether it detected nothing, and its event count."""
    from simulation.controller.sim import ControllerSim
    from simulation.raft.sim import RaftSim
    from simulation.replication.sim import staged_sim

    run: Callable[[], None]
    count: Callable[[], int]
    if kind == "controller":
        controller = ControllerSim.of(seed)
        run, count = lambda: controller.run(400), lambda: controller.taken
    elif kind == "replication":
        replicas = staged_sim(seed, stage)
        run, count = lambda: replicas.simulate(14), lambda: replicas.events
    else:
        quorum = RaftSim.of(seed, trace_length=10)
        run, count = lambda: quorum.run(4000), lambda: quorum.scheduler.events
    try:
        run()
    except Exception:  # noqa: BLE001 - any exception detects the mistake
        return False, count()
    return True, count()


def detect(task: tuple[str, str, int]) -> tuple[str, str, int, int]:
    """Make one mistake; return its name and text, and the seeds and events until it was detected.

    The number of seeds is 0 if 100 seeds did not detect it.
    """
    kind, name, first = task
    (mutation,) = (m for m in table_of(kind) if m.name == name)
    total = 0
    for count, seed in enumerate(range(first, first + 100), 1):
        with mutation.active():
            is_quiet, taken = attempt(kind, seed, mutation.stage)
        total += taken
        if not is_quiet and attempt(kind, seed, mutation.stage)[0]:
            return name, mutation.mistake, count, total
    return name, mutation.mistake, 0, total


def detect_all(options: argparse.Namespace, kind: str) -> int:
    """Write the table's rows of the named mistakes, or of all; return 1 if one was not detected."""
    names = options.detect or [mutation.name for mutation in table_of(kind)]
    tasks = [(kind, name, options.first) for name in names]
    rows = {}
    with multiprocessing.Pool(options.jobs) as pool:
        for name, mistake, seeds, taken in pool.imap_unordered(detect, tasks):
            rows[name] = f"| {name} | {mistake} | {seeds or 'none'} | {taken} |"
            print(rows[name], flush=True)
    write_table(kind, rows)
    return 1 if any("| none |" in row for row in rows.values()) else 0


def write_table(kind: str, rows: dict[str, str]) -> None:
    """Put rows into a table of docs/simulation.md, in place of those with their names."""
    unit = "steps" if kind == "controller" else "events"
    lines = [f"| mutation | mistake | seeds | {unit} until it is noticed |", "|---|---|---|---|"]
    page = ROOT / "docs" / "simulation.md"
    begin, end = f"<!-- {kind} mutations -->\n", "<!-- end -->\n"
    head, rest = page.read_text().split(begin)
    table, tail = rest.split(end, 1)
    rows = {row.split(" | ")[0].removeprefix("| "): row for row in table.splitlines()[2:]} | rows
    lines += [rows[mutation.name] for mutation in table_of(kind) if mutation.name in rows]
    page.write_text(head + begin + "\n".join(lines) + "\n" + end + tail)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--controller", action="store_true", help="simulate the controller")
    parser.add_argument(
        "--detect", nargs="*", metavar="NAME", help="make mistakes; write their table"
    )
    parser.add_argument("--isr", action="store_true", help="simulate changes of one ISR")
    parser.add_argument("--logs", action="store_true", help="simulate a broker's logs")
    parser.add_argument("--replication", action="store_true", help="simulate replication")
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
    logging.getLogger("kwire").addHandler(logging.NullHandler())  # The faults are intended.
    started = time.monotonic()
    kinds = [
        kind for kind in ("controller", "isr", "logs", "replication") if getattr(options, kind)
    ]
    kind = kinds[0] if kinds else "raft"
    if options.detect is not None:
        return detect_all(options, kind)
    if options.seed is not None:
        _, events, failure = run_seed((kind, options.seed, options.events, options.trace))
        if failure:
            print(f"seed {options.seed} failed", flush=True)
        print(failure or f"seed {options.seed}: {events} events, nothing wrong")
        return 1 if failure else 0
    total = seeds = 0
    following = int(time.time()) if options.rotate else options.first
    with multiprocessing.Pool(options.jobs) as pool:
        while time.monotonic() - started < options.seconds:
            batch = range(following, following + 4 * options.jobs)
            following = batch.stop
            tasks = [(kind, seed, options.events, options.trace) for seed in batch]
            for seed, events, failure in pool.imap_unordered(run_seed, tasks):
                if failure:
                    print(f"seed {seed} failed", flush=True)
                    print(failure, flush=True)
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

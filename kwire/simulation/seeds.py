"""Seeds for simulations in tests: another series every day, so that time goes on searching."""

import os

from kwire.clock import SystemClock

PER_DAY = 1_000
MS_PER_DAY = 86_400_000


def todays_seeds(count: int) -> range:
    """The day's seeds, or those from ``KWIRE_SIM_FIRST`` on; ``KWIRE_SIM_SEEDS`` says how many.

    The seed is in the test's name and in its failure; ``scripts/sim.py --seed`` shows it again,
    on any day.
    """
    first = int(os.environ.get("KWIRE_SIM_FIRST", PER_DAY * (SystemClock().now_ms() // MS_PER_DAY)))
    return range(first, first + int(os.environ.get("KWIRE_SIM_SEEDS", count)))

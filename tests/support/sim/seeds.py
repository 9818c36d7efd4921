"""Seeds for simulations in tests: a different series every day, so that repeated runs find more."""

import os

from kwire.clock import SystemClock

PER_DAY = 1_000
MS_PER_DAY = 86_400_000


def todays_seeds(count: int) -> range:
    """Return the day's seeds, or those from ``KWIRE_SIM_FIRST`` on.

    ``KWIRE_SIM_SEEDS`` overrides their number. The seed is in the test's name and in its failure;
    ``scripts/sim.py --seed`` repeats it on any day.
    """
    first = int(os.environ.get("KWIRE_SIM_FIRST", PER_DAY * (SystemClock().now_ms() // MS_PER_DAY)))
    return range(first, first + int(os.environ.get("KWIRE_SIM_SEEDS", count)))

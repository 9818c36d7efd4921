"""Both implementations give the same results and errors for damaged payloads."""

from tests.support.speedups import fuzz
from tests.support.speedups.implementations import implementation


def test_damaged_payloads_are_judged_alike():
    implementation("c")
    undamaged = sum(map(fuzz.compare, range(2000)))
    assert 100 < undamaged < 1900

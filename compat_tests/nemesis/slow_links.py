"""Faults of links that deliver packets late, slowly, twice, not at all or out of their order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

import attrs

from compat_tests.nemesis.faults import End, Nemesis
from compat_tests.nemesis.links import CLIENTS
from compat_tests.nemesis.relay import Pace


def _draw_late(chance: Random) -> Pace:
    delay = chance.uniform(0.05, 0.5)
    return Pace(delay_s=delay, jitter_s=delay / 2)


def _draw_lossy(chance: Random) -> Pace:
    return Pace(loss=chance.uniform(0.05, 0.2))


def _draw_repeating(chance: Random) -> Pace:
    return Pace(jitter_s=0.05, repetition=chance.uniform(0.05, 0.2), is_reordering=True)


def _draw_reordering(chance: Random) -> Pace:
    return Pace(delay_s=0.01, jitter_s=chance.uniform(0.02, 0.1), is_reordering=True)


def _draw_narrow(chance: Random) -> Pace:
    return Pace(bytes_per_s=chance.uniform(20_000, 200_000))


PACES: Final[dict[str, Callable[[Random], Pace]]] = {
    "late packets": _draw_late,
    "lost packets": _draw_lossy,
    "repeated packets": _draw_repeating,
    "reordered packets": _draw_reordering,
    "narrow links": _draw_narrow,
}
"""The functions that draw a pace, by the name of the fault."""


@attrs.define(eq=False)
class SlowLinks:
    """The faults of slow links: of two nodes, of a node and all others, or of clients."""

    nemesis: Nemesis

    def faults(self) -> dict[str, Callable[[], End]]:
        if not self.nemesis.links.can_slow:
            return {}
        return {name: partial(self._slow, name) for name in PACES}

    def heal(self) -> None:
        """Do nothing: the links themselves are healed."""

    def _slow(self, name: str) -> End:
        chance = self.nemesis.random
        node = self.nemesis.victim()
        others = self.nemesis.others(node)
        ends = chance.choice((others, [chance.choice(others)], [CLIENTS], [*others, CLIENTS]))
        pace = PACES[name](chance)
        is_one_way = chance.random() < 0.3
        self.nemesis.report(
            f"{name} {'from' if is_one_way else 'between'} {node.id} {ends}: {pace}"
        )
        for end in ends:
            self.nemesis.links.slow(node.id, end, pace)
            if not is_one_way:
                self.nemesis.links.slow(end, node.id, pace)
        return self.nemesis.links.heal

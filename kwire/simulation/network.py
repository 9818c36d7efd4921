"""A network that delays, loses, repeats and reorders, and can be cut in one direction."""

from collections.abc import Callable
from random import Random

import attrs

from kwire.simulation.clockwork import Scheduler


@attrs.define
class SimNetwork:
    """Carries messages between numbered nodes; how badly is a matter of its settings."""

    scheduler: Scheduler
    random: Random
    delay_min: float = 0.0005
    delay_max: float = 0.01
    slow_share: float = 0.0
    """Share of messages that take up to a hundred times as long, so that later ones overtake."""
    loss: float = 0.0
    duplication: float = 0.0
    corruption: float = 0.0
    """Share of answers with records in which a bit is changed."""
    cut: set[tuple[int, int]] = attrs.field(factory=set)
    rejects: bool = False
    """Whether a cut refuses what is sent, as a firewall may, or swallows it."""

    def send(
        self,
        source: int,
        target: int,
        deliver: Callable[[], None],
        refused: Callable[[], None] | None = None,
    ) -> None:
        """Deliver now or never, once or twice; or tell the sender that it was refused."""
        if (source, target) in self.cut:
            if self.rejects and refused is not None:
                self.scheduler.after(self._delay(), refused)
            return
        if self.random.random() < self.loss:
            return
        copies = 2 if self.random.random() < self.duplication else 1
        for _ in range(copies):
            self.scheduler.after(self._delay(), lambda: self._arrive(source, target, deliver))

    def _arrive(self, source: int, target: int, deliver: Callable[[], None]) -> None:
        if (source, target) not in self.cut:
            deliver()

    def _delay(self) -> float:
        delay = self.delay_min + (self.delay_max - self.delay_min) * self.random.random()
        if self.random.random() < self.slow_share:
            delay *= 1 + 99 * self.random.random()
        return delay

    def isolate(self, node: int, others: list[int], *, inwards: bool, outwards: bool) -> None:
        """Cut a node off, from what it hears, what it says, or both."""
        for other in others:
            if other != node:
                if inwards:
                    self.cut.add((other, node))
                if outwards:
                    self.cut.add((node, other))

    def calm(self) -> None:
        """A good network from now on."""
        self.cut.clear()
        self.rejects = False
        self.loss = self.duplication = self.slow_share = self.corruption = 0.0

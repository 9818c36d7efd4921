"""A network that delays, loses, repeats and reorders messages, with links cut in one direction."""

from collections.abc import Callable
from random import Random

import attrs

from simulation.scheduler import Scheduler


@attrs.define
class SimNetwork:
    """A network of numbered nodes, with settings for its faults."""

    scheduler: Scheduler
    random: Random
    delay_min: float = 0.0005
    delay_max: float = 0.01
    slow_share: float = 0.0
    """The share of messages that take up to 100 times as long, so that later ones overtake them."""
    loss: float = 0.0
    duplication: float = 0.0
    corruption: float = 0.0
    """The share of responses with records in which one bit is flipped."""
    cut: set[tuple[int, int]] = attrs.field(factory=set)
    rejects: bool = False
    """True if a cut link refuses messages, as a firewall may, instead of losing them silently."""

    def send(
        self,
        source: int,
        target: int,
        deliver: Callable[[], None],
        on_refused: Callable[[], None] | None = None,
    ) -> None:
        """Deliver a message later, twice or never, or tell the sender that it was refused."""
        if (source, target) in self.cut:
            if self.rejects and on_refused is not None:
                self.scheduler.after(self._delay(), on_refused)
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
        """Cut a node's links from others (``inwards``), to others (``outwards``), or both."""
        for other in others:
            if other != node:
                if inwards:
                    self.cut.add((other, node))
                if outwards:
                    self.cut.add((node, other))

    def calm(self) -> None:
        """Restore all links, without faults."""
        self.cut.clear()
        self.rejects = False
        self.loss = self.duplication = self.slow_share = self.corruption = 0.0

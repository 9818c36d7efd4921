"""Faults of nodes, links and disks, drawn from a seed.

Rules: the seed decides which faults come, on which nodes and for how long; each fault has an end,
and :meth:`Nemesis.heal` ends all. A fault that destroys data (:data:`DESTRUCTIVE`) comes alone,
when all replicas are in sync: Kafka's promises hold for one disk at a time. It destroys only what
was not synced, as a loss of power would.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from random import Random
from typing import Final, Protocol

import attrs

from compat_tests.cluster.nodes import Cluster, Node
from compat_tests.nemesis import directories
from compat_tests.nemesis.directories import data, log_directories, partitions
from compat_tests.nemesis.links import CLIENTS, Links
from compat_tests.nemesis.replicas import batch_positions
from compat_tests.nemesis.shifted_node import set_shift

End = Callable[[], None]
REPLACED: Final = "replaced voter"
DESTRUCTIVE: Final = frozenset(
    {"torn tails", "no indexes", "full disk", "replaced directory", REPLACED}
)
NEVER_SECOND: Final = DESTRUCTIVE | {"stop", "rolling restart"}
"""Faults that another one must not precede: a stop needs a controller that it can reach."""
FILLER: Final = "filler"
"""The file that fills a volume."""
TRUNCATION_SECONDS: Final = 10.0
"""The longest wait for a deposed leader's truncation; it may have nothing to truncate."""
STUTTER_SECONDS: Final = (0.1, 1.0)
"""The time from one stop of a node that stutters to the next."""
CLOCK_JUMPS_S: Final = (-2700, -60, 5, 900, 2 * 86_400)
"""Back by less than ``message.timestamp.after.max.ms``, forward by less than the retention."""
CHECKPOINT: Final = "recovery-point-offset-checkpoint"
INDEXES: Final = (
    ("*.index",),
    ("*.timeindex",),
    ("*.snapshot",),
    ("leader-epoch-checkpoint",),
)
"""The patterns of files that can be made again, those of a line together."""
TRANSACTION_INDEXES: Final = {"kwire": ("*.txnindex",), "kafka": ("*.index", "*.txnindex")}
"""Apache Kafka makes a transaction index again only together with its offset index."""


class Source(Protocol):
    """Further faults, of one subject."""

    def faults(self) -> dict[str, Callable[[], End]]:
        """Return the functions that begin each fault, by its name; each returns how it ends."""

    def heal(self) -> None:
        """End what lasts, once all nodes run and all links are whole."""


@attrs.define(eq=False)
class Nemesis:
    """A source of faults; ``report`` gets a line for each."""

    cluster: Cluster
    links: Links
    random: Random
    has_volumes: bool
    report: Callable[[str], None]
    wait_in_sync: Callable[[], None]
    """Waits until all replicas are in sync: between two restarts of a rolling restart."""
    shifts: dict[int, Path] = attrs.field(factory=dict)
    """The files that shift the nodes' wall clocks; empty where none can be shifted."""
    directories: int = 1
    """The number of log directories of each node."""
    only: Sequence[str] = ()
    """The names of the faults to draw; empty for all."""
    sources: Sequence[Source] = ()
    """Sources of further faults, which come more often together with another one."""
    counts: dict[str, int] = attrs.field(factory=dict)
    is_settled: bool = True
    """Whether all nodes have run and all replicas were in sync since the last fault."""
    was_settled: bool = True
    """Whether that was so when the fault that begins was drawn, and no other one lasts."""
    unexpected_ends: list[str] = attrs.field(factory=list)
    """Processes that ended by themselves."""
    _deck: list[str] = attrs.field(factory=list)
    _down: set[int] = attrs.field(factory=set)
    """Nodes that a fault has stopped or killed."""

    def faults(self) -> dict[str, Callable[[], End]]:
        """Return the functions that begin each fault, by its name; each returns how it ends."""
        faults: dict[str, Callable[[], End]] = {
            "kill": self._kill,
            "kill all": self._kill_all,
            "pause": self._pause,
            "stutter": self._stutter,
            "unplug": self._unplug,
            "split": self._split,
            "partial": self._partial,
            "one way": self._one_way,
            "one way to all": self._one_way_to_all,
            "clients cut off": self._clients_cut_off,
            "torn tails": self._torn_tails,
            "no indexes": self._no_indexes,
            "stop": self._stop,
            "rolling restart": self._rolling_restart,
            "pause at a truncation": self._pause_at_truncation,
        }
        if self.links.can_refuse:
            faults["firewall"] = self._firewall
            faults["firewall for clients"] = self._firewall_for_clients
        if self.shifts:
            faults["clock jumps"] = self._clock_jumps
            faults["all clocks jump"] = self._all_clocks_jump
        if self.has_volumes:
            faults["full disk"] = self._full_disk
        if self.directories > 1:
            faults["failed directory"] = self._failed_directory
            faults["replaced directory"] = self._replaced_directory
        for source in self.sources:
            faults |= source.faults()
        return {name: begin for name, begin in faults.items() if not self.only or name in self.only}

    def _of_sources(self) -> set[str]:
        """Return the names of the faults of :attr:`sources`."""
        return {name for source in self.sources for name in source.faults()}

    def strike(self) -> None:
        """Begin the next fault of the deck, and maybe a second one, and end both."""
        faults = self.faults()
        name = self._draw(faults)
        while name in DESTRUCTIVE and not self.is_settled:
            self._deck.insert(0, name)
            name = self._draw(faults)
        self.was_settled, self.is_settled = self.is_settled, False
        ends = [self._begin(name, faults)]
        self.was_settled = False
        self._pause_between()
        others = sorted(faults.keys() - NEVER_SECOND - {name})
        share = 0.6 if name in self._of_sources() else 0.3
        if name not in DESTRUCTIVE and others and self.random.random() < share:
            ends.append(self._begin(self.random.choice(others), faults))
            self._pause_between()
        for end in ends:
            end()

    def is_next_destructive(self) -> bool:
        """Whether the next fault of the deck needs a cluster that is whole."""
        return bool(self._deck) and self._deck[-1] in DESTRUCTIVE

    def _draw(self, names: dict[str, Callable[[], End]]) -> str:
        """Return the next name of a shuffled deck, in which each fault is once."""
        if not self._deck:
            self._deck = self.random.sample(sorted(names), len(names))
        return self._deck.pop()

    def _begin(self, name: str, faults: dict[str, Callable[[], End]]) -> End:
        self.counts[name] = self.counts.get(name, 0) + 1
        return faults[name]()

    def _pause_between(self) -> None:
        """Wait for less than a session's time-out, or for longer than it."""
        is_short = self.random.random() < 0.5
        time.sleep(self.random.uniform(0.0, 2.0) if is_short else self.random.uniform(6.0, 12.0))

    def heal(self) -> None:
        """End all faults that still last, and start what does not run."""
        self.links.heal()
        for node in self.cluster.nodes.values():
            self._remove_filler(node)
            for directory in log_directories(node, self.directories)[1:]:
                directories.mend(directory)
            if node.process is not None and node.alive:
                node.process.send_signal(signal.SIGCONT)
            elif node.id not in self._down:
                assert node.process is not None
                code = node.process.returncode
                self.unexpected_ends.append(f"node {node.id} ended with exit code {code}")
                self.report(self.unexpected_ends[-1])
            if not node.alive:
                node.launch()
        self._down.clear()
        for source in self.sources:
            source.heal()

    # Processes -----------------------------------------------------------------------------

    def _nodes(self) -> list[Node]:
        return list(self.cluster.nodes.values())

    def victim(self) -> Node:
        return self.random.choice(self._nodes())

    def bring_down(self, node: Node) -> None:
        self._down.add(node.id)
        node.kill()

    def launch(self, node: Node) -> None:
        if not node.alive:
            self._down.discard(node.id)
            node.launch()

    def _kill(self) -> End:
        node = self.victim()
        self.report(f"kill {node.id}")
        self.bring_down(node)
        return lambda: self.launch(node)

    def _kill_all(self) -> End:
        self.report("kill all")
        nodes = self.random.sample(self._nodes(), len(self._nodes()))
        for node in nodes:
            self.bring_down(node)

        def end() -> None:
            for node in nodes:
                self.launch(node)
                time.sleep(self.random.choice((0.0, 0.0, 1.0)))

        return end

    def _pause(self) -> End:
        node = self.victim()
        self.report(f"pause {node.id}")
        self.signal(node, signal.SIGSTOP)
        return lambda: self.signal(node, signal.SIGCONT)

    def _stutter(self) -> End:
        """Stop a node again and again for less than a second, as one with a slow disk stalls."""
        node = self.victim()
        share = self.random.uniform(0.2, 0.8)
        self.report(f"stutter of {node.id}: stopped for {share:.0%} of the time")
        ended = threading.Event()

        def stutter() -> None:
            chance = Random(node.id)
            while not ended.is_set():
                seconds = chance.uniform(*STUTTER_SECONDS)
                self.signal(node, signal.SIGSTOP)
                ended.wait(seconds * share)
                self.signal(node, signal.SIGCONT)
                ended.wait(seconds * (1 - share))

        thread = threading.Thread(target=stutter, daemon=True)
        thread.start()

        def end() -> None:
            ended.set()
            thread.join()

        return end

    def signal(self, node: Node, number: signal.Signals) -> None:
        if node.process is not None and node.alive:
            node.process.send_signal(number)

    def _stop(self) -> End:
        node = self.victim()
        self.report(f"stop {node.id}")
        self._stop_in_order(node)
        return lambda: self.launch(node)

    def _stop_in_order(self, node: Node) -> None:
        if node.alive:
            self._down.add(node.id)
            node.stop()

    def _rolling_restart(self) -> End:
        self.report("rolling restart")
        for node in self.random.sample(self._nodes(), len(self._nodes())):
            self._stop_in_order(node)
            self.launch(node)
            self.wait_in_sync()
        return lambda: None

    def _pause_at_truncation(self) -> End:
        """Depose a leader that clients still reach, and stop it when it begins to truncate."""
        node = self.random.choice(self.cluster.brokers)
        others = self.others(node)
        self._cut(*((node.id, o) for o in others), *((o, node.id) for o in others))
        time.sleep(self.random.uniform(7.0, 10.0))  # Longer than its session.
        log_end = node.log.stat().st_size
        self.links.heal()
        is_paused = self._wait_truncation(node, log_end)
        self.signal(node, signal.SIGSTOP)
        self.report(f"pause {node.id} {'at a truncation' if is_paused else 'without truncation'}")
        return lambda: self.signal(node, signal.SIGCONT)

    def _wait_truncation(self, node: Node, log_end: int) -> bool:
        """Wait until the node reports a truncation; return whether it did."""
        until = time.monotonic() + TRUNCATION_SECONDS
        while time.monotonic() < until:
            with node.log.open("rb") as file:
                file.seek(log_end)
                if b"runcating " in file.read():
                    return True
            time.sleep(0.001)
        return False

    # Clocks --------------------------------------------------------------------------------

    def _jump(self, node_ids: Sequence[int]) -> End:
        """Shift wall clocks by less than what records' timestamps and retention allow."""
        seconds = self.random.choice(CLOCK_JUMPS_S)
        self.report(f"clock jumps by {seconds} s on {list(node_ids)}")
        for node_id in node_ids:
            set_shift(self.shifts[node_id], seconds * 1000)

        def end() -> None:
            for node_id in node_ids:
                set_shift(self.shifts[node_id], 0)

        return end

    def _clock_jumps(self) -> End:
        return self._jump([self.victim().id])

    def _all_clocks_jump(self) -> End:
        return self._jump(sorted(self.shifts))

    # Links ---------------------------------------------------------------------------------

    def _cut(self, *links: tuple[int, int]) -> End:
        for source, target in links:
            self.links.cut(source, target)
        return self.links.heal

    def others(self, node: Node) -> list[int]:
        return [other.id for other in self._nodes() if other is not node]

    def _unplug(self) -> End:
        node = self.victim()
        self.report(f"unplug {node.id}")
        self.links.unplug(node.id)
        return self.links.heal

    def _split(self) -> End:
        """Cut a node off from the other nodes; clients reach all of them."""
        node = self.victim()
        self.report(f"split {node.id} from the other nodes")
        others = self.others(node)
        return self._cut(*((node.id, o) for o in others), *((o, node.id) for o in others))

    def _partial(self) -> End:
        first, second = (node.id for node in self.random.sample(self._nodes(), 2))
        self.report(f"partial {first} and {second}")
        return self._cut((first, second), (second, first))

    def _one_way(self) -> End:
        source, target = (node.id for node in self.random.sample(self._nodes(), 2))
        self.report(f"one way from {source} to {target}")
        return self._cut((source, target))

    def _one_way_to_all(self) -> End:
        node = self.victim()
        is_out = self.random.random() < 0.5
        self.report(f"one way {'out of' if is_out else 'into'} {node.id}")
        others = self.others(node)
        return self._cut(*(((node.id, o) if is_out else (o, node.id)) for o in others))

    def _clients_cut_off(self) -> End:
        node = self.victim()
        is_both = self.random.random() < 0.5
        self.report(f"clients cut off from {node.id}{'' if is_both else ', one way'}")
        return self._cut((CLIENTS, node.id), *([(node.id, CLIENTS)] if is_both else []))

    def _refuse(self, node: Node, sources: list[int]) -> End:
        """Have a node's firewall refuse what these send, and theirs what the node sends."""
        with_reset, is_both = self.random.random() < 0.5, self.random.random() < 0.5
        kind = "with resets" if with_reset else "with ICMP messages"
        self.report(f"firewall {kind} {'between' if is_both else 'into'} {node.id} {sources}")
        for source in sources:
            self.links.refuse(source, node.id, with_reset=with_reset)
            if is_both and source != CLIENTS:
                self.links.refuse(node.id, source, with_reset=with_reset)
        return self.links.heal

    def _firewall(self) -> End:
        node = self.victim()
        others = self.others(node)
        if self.random.random() < 0.5:
            others = [self.random.choice(others)]
        return self._refuse(node, others)

    def _firewall_for_clients(self) -> End:
        return self._refuse(self.victim(), [CLIENTS])

    # Disks ---------------------------------------------------------------------------------

    def _torn_tails(self) -> End:
        """Kill a broker and cut bytes off the ends of some of its logs."""
        node = self.random.choice(self.cluster.brokers)
        self.bring_down(node)
        lengths = {}
        for folder in partitions(node):
            synced = dict(recovery_points(folder.parent / CHECKPOINT))
            if self.random.random() < 0.6:
                size = self._tear(folder, synced.get(folder.name, 0))
                if size:
                    lengths[folder.name] = size
        self.report(f"torn tails of {node.id}: {lengths}")
        return lambda: self.launch(node)

    def _tear(self, folder: Path, synced: int) -> int:
        """Cut what was not synced off the newest segment, or a part of it; return its length."""
        segment = max(folder.glob("*.log"), default=None)
        if segment is None:
            return 0
        positions = batch_positions(segment.read_bytes())
        first = next((start for start, _, header in positions if header.base_offset >= synced), -1)
        if first < 0:
            return 0
        end = positions[-1][1]
        length = min(self.random.randint(1, end - first), self.random.choice((30, 500, 20_000)))
        os.truncate(segment, end - length)
        return length

    def _no_indexes(self) -> End:
        """Kill or stop a broker and delete files that can be made again."""
        node = self.random.choice(self.cluster.brokers)
        if self.random.random() < 0.5:
            self.bring_down(node)
        else:
            self._stop_in_order(node)
        count = 0
        for folder in partitions(node):
            for patterns in (*INDEXES, TRANSACTION_INDEXES[node.kind]):
                if self.random.random() < 0.5:
                    for path in chain.from_iterable(map(folder.glob, patterns)):
                        path.unlink()
                        count += 1
        self.report(f"no indexes on {node.id}: {count} files deleted")
        return lambda: self.launch(node)

    def _full_disk(self) -> End:
        node = self.random.choice(self.cluster.brokers)
        self.report(f"full disk of {node.id}")
        if node.kind == "kafka":
            self._down.add(node.id)  # Apache Kafka ends when its only directory fails.
        filler = data(node) / FILLER
        with filler.open("wb") as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 20))
        return lambda: self._remove_filler(node)

    def _failing_directory(self) -> tuple[Node, Path]:
        """Choose a directory without the metadata log."""
        node = self.random.choice(self.cluster.brokers)
        return node, self.random.choice(log_directories(node, self.directories)[1:])

    def _failed_directory(self) -> End:
        """Have a directory fail until its node is restarted; its contents survive."""
        node, directory = self._failing_directory()
        self.report(f"failed directory {directory.name} of {node.id}")
        directories.fail(directory)

        def end() -> None:
            self.bring_down(node)
            directories.mend(directory)
            self.launch(node)

        return end

    def _replaced_directory(self) -> End:
        """Kill a broker and take the contents of one of its directories away."""
        node, directory = self._failing_directory()
        self.bring_down(node)
        count = len(list(directory.iterdir()))
        self.report(f"replaced directory {directory.name} of {node.id}: {count} entries")
        directories.replace(directory)
        return lambda: self.launch(node)

    def _remove_filler(self, node: Node) -> None:
        (data(node) / FILLER).unlink(missing_ok=True)


def recovery_points(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the directory name and the offset below which a partition was synced."""
    if path.exists():
        for line in path.read_text().splitlines()[2:]:
            topic, partition, offset = line.split()
            yield f"{topic}-{partition}", int(offset)

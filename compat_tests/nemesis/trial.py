"""A cluster of real processes under faults from a seed, and the check of its clients' history.

    python -m compat_tests.nemesis.trial [--broker kwire|kafka] [--mode MODE] [--seed N]
        [--seconds N] [--separate] [--brokers N] [--dynamic] [--without-elr] [--directories N]
        [--directory DIR]

Three nodes, or with ``--separate`` three controllers and three brokers, run in Linux network
namespaces, or behind proxies where those are not permitted; the first line of the output says
which. Between the faults are quiet periods: then all replicas must get into sync, every producer
must be acknowledged, and every reader and group must reach the end. In the end the history is
checked (`durability/history.py`), and the copies of all partitions are compared. The same seed
draws the same faults. Where something is wrong the data, the logs and the history are left in the
directory.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import attrs
from confluent_kafka import KafkaException

from compat_tests.cluster.nodes import BROKER, COMBINED, CONTROLLER, ELR, FEATURES, Cluster, Node
from compat_tests.confluent_kafka.clients import create
from compat_tests.durability.history import History, anomalies
from compat_tests.durability.observations import Place, View
from compat_tests.durability.recording import TOO_LARGE
from compat_tests.harness.broker import kafka
from compat_tests.harness.wait import eventually
from compat_tests.nemesis import assigned_group, share_group, shifted_node
from compat_tests.nemesis.administration import Administrator
from compat_tests.nemesis.assigned_group import AssignedGroupRun
from compat_tests.nemesis.clients import (
    READER_SETTINGS,
    WRITER_SETTINGS,
    ClusterRun,
    TransactionalRun,
)
from compat_tests.nemesis.directories import data, folder_of, log_directories
from compat_tests.nemesis.faults import Nemesis
from compat_tests.nemesis.links import CLIENTS, Namespaces, enter_isolation
from compat_tests.nemesis.proxies import Proxies
from compat_tests.nemesis.replicas import find_misplaced_copies, is_in_sync, read_copy, views
from compat_tests.nemesis.share_group import ShareGroupRun
from compat_tests.nemesis.shifted_node import set_shift
from compat_tests.nemesis.slow_links import SlowLinks
from compat_tests.nemesis.voters import VoterChanges
from kwire.codec.messages.api_versions import ApiVersionsRequest
from kwire.testing.wire import Closed
from kwire.types import METADATA_TOPIC

RUNS = {
    "idempotent": ClusterRun,
    "transactions": TransactionalRun,
    "consumer": AssignedGroupRun,
    "share": ShareGroupRun,
}
PAUSES = {"idempotent": 0.03, "transactions": 0.05, "consumer": 0.03, "share": 0.03}
"""The seconds between two records of a producer: a busy machine must keep up with them."""
PROXIES_SHARE = 5
"""The factor by which producers are slower behind proxies, which cost as much as the nodes."""
TOPIC, PARTITIONS = "t", 4
CONTROLLERS = 3
VOLUME_MEGABYTES = 1024
END_SECONDS = 600
"""The longest time from the last fault until the end of the process, which else ends itself."""
DELETION_SECONDS = 60
"""The longest time until what is deleted is gone from the disks."""
RECOVERY_SECONDS = 60
"""The longest time until a cluster without faults is whole again, on a busy machine."""
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "3",
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "1500",
    "replica.lag.time.max.ms": "6000",
    "replica.socket.timeout.ms": "5000",
    "leader.imbalance.check.interval.seconds": "5",
    "auto.create.topics.enable": "false",
    "log.segment.delete.delay.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    **assigned_group.SETTINGS,
    **share_group.SETTINGS,
}


@attrs.define(eq=False)
class LinkedCluster(Cluster):
    """A cluster whose nodes use links that can be cut."""

    links: Namespaces | Proxies | None = None
    directories: int = 1
    """The number of log directories of each node."""
    shifts: dict[int, Path] = attrs.field(factory=dict)
    """The files that shift the wall clocks of kwire's nodes."""
    proxy_ports: dict[int, int] = attrs.field(factory=dict)
    """The port of the proxy in front of each port."""

    def add(self, node_id: int, kind: str = "kwire", roles: str = COMBINED) -> Node:
        node = super().add(node_id, kind, roles)
        assert self.links is not None
        node.host = self.links.host(node_id)
        node.prefix = self.links.prefix(node_id)
        if kind == "kwire":
            self.shifts[node_id] = shift = self.directory / f"shift-{node_id}"
            set_shift(shift, 0)
            node.program = (sys.executable, shifted_node.__file__, str(shift))
        if isinstance(self.links, Proxies):
            for port in (node.port, node.controller_port):
                self.proxy_ports[port] = self.links.add(node_id, port)
        return node

    def properties(self, node: Node) -> dict[str, str]:
        properties = super().properties(node)
        properties["log.dirs"] = ",".join(map(str, log_directories(node, self.directories)))
        if self.proxy_ports:
            listeners = properties["listeners"]
            properties["advertised.listeners"] = self._behind_proxies(listeners)
            voters = properties["controller.quorum.voters"]
            properties["controller.quorum.voters"] = self._behind_proxies(voters)
        return properties

    def _behind_proxies(self, text: str) -> str:
        """Replace each port of a list of addresses by that of its proxy."""
        addresses = (address.rsplit(":", 1) for address in text.split(","))
        return ",".join(f"{host}:{self.proxy_ports[int(port)]}" for host, port in addresses)

    @property
    def bootstrap(self) -> str:
        ports = self.proxy_ports
        return ",".join(f"{n.host}:{ports.get(n.port, n.port)}" for n in self.brokers)


@attrs.define(eq=False)
class Trial:
    """One run: a cluster, its clients, its faults, and what was observed."""

    options: argparse.Namespace
    directory: Path
    reason: str | None
    """The reason for which there are no namespaces; None if there are."""
    began: float = attrs.field(factory=time.monotonic)
    volumes: list[Path] = attrs.field(factory=list)
    cluster: LinkedCluster = attrs.field(init=False)
    clients: ClusterRun | None = None

    def report(self, text: str) -> None:
        clock = time.strftime("%H:%M:%S")
        print(f"{clock} {time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    def run(self) -> list[str]:
        """Run everything and return what is wrong."""
        count = self.options.brokers
        roles = {n: COMBINED if n <= CONTROLLERS else BROKER for n in range(1, count + 1)}
        if self.options.separate:
            roles = dict.fromkeys(range(1, count + 1), BROKER)
            roles |= dict.fromkeys(range(count + 1, count + 1 + CONTROLLERS), CONTROLLER)
        links = self._links(tuple(roles))
        self.cluster = LinkedCluster(
            self.directory,
            SETTINGS,
            dynamic=self.options.dynamic,
            links=links,
            directories=self.options.directories,
        )
        for node_id, role in roles.items():
            self.cluster.add(node_id, self.options.broker, role)
        try:
            has_volumes = self._mount_volumes()
            self.report(
                f"{self.options.broker}, {self.options.mode}, seed {self.options.seed}, links:"
                f" {links.name}{f' ({self.reason})' if self.reason else ''}, full disks:"
                f" {'tmpfs' if has_volumes else 'left out, no tmpfs can be mounted'}"
            )
            if self.options.dynamic:
                self.cluster.start_with_initial_controllers(self._disabled_features())
            else:
                self.cluster.start(self._disabled_features())
            self._check_links(links)
            return self._run_clients(links, has_volumes)
        finally:
            self.cluster.close()
            links.close()

    def _disabled_features(self) -> list[str]:
        disabled = [name for name in FEATURES if name not in ("transaction", "share")]
        return [*disabled, ELR] if self.options.without_elr else disabled

    def _links(self, node_ids: tuple[int, ...]) -> Namespaces | Proxies:
        return Namespaces.create(node_ids) if self.reason is None else Proxies(node_ids)

    def _mount_volumes(self) -> bool:
        """Mount a volume for each broker's data, in the mount namespace of this process alone."""
        if self.reason is not None:
            return False
        for node in self.cluster.brokers:
            data(node).mkdir()
            options = f"size={VOLUME_MEGABYTES}m"
            command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(data(node))]
            subprocess.run(command, check=True)
            self.volumes.append(data(node))
        return True

    def _check_links(self, links: Namespaces | Proxies) -> None:
        """Check that a cut is one: a client does not reach a node, and does when it is mended."""
        first, second, *_ = self.cluster.brokers
        links.cut(CLIENTS, first.id)
        assert not self._is_reachable(first), "a cut link passes requests on"
        eventually(lambda: self._is_reachable(second), "another link passes requests on")
        links.heal()
        eventually(lambda: self._is_reachable(first), "a mended link passes requests on")

    def _is_reachable(self, node: Node) -> bool:
        host, port = self.cluster.bootstrap.split(",")[node.id - 1].split(":")
        via = attrs.evolve(node, host=host, port=int(port))
        try:
            with via.client(timeout_s=1.0) as client:
                client.call(ApiVersionsRequest(), 0)
        except (OSError, Closed):
            return False
        return True

    def _run_clients(self, links: Namespaces | Proxies, has_volumes: bool) -> list[str]:
        chance = Random(self.options.seed)
        run = RUNS[self.options.mode](
            self.cluster.bootstrap,
            TOPIC,
            PARTITIONS,
            pause=PAUSES[self.options.mode] * (1 if self.reason is None else PROXIES_SHARE),
            writer_settings=WRITER_SETTINGS,
            reader_settings=READER_SETTINGS,
        )
        self.clients = run
        for topic in run.topics():
            create(
                self.cluster.bootstrap,
                topic,
                PARTITIONS,
                replicas=3,
                internal_segment_bytes="200000",
                index_interval_bytes="500",
                max_message_bytes=str(TOO_LARGE // 2),
            )
        nemesis = Nemesis(
            self.cluster,
            links,
            chance,
            has_volumes,
            self.report,
            self._wait_in_sync,
            self.cluster.shifts,
            directories=self.options.directories,
            only=self.options.only,
        )
        administrator = Administrator(nemesis, run)
        voter_changes = VoterChanges(nemesis, self.options.directories, self._disabled_features())
        nemesis.sources = [SlowLinks(nemesis), administrator]
        if self.options.dynamic:
            nemesis.sources = [*nemesis.sources, voter_changes]
        run.start()
        self._wait_quiet(run)
        self.began = time.monotonic()
        while (
            time.monotonic() < self.began + self.options.seconds
            or len(nemesis.counts) < self.options.kinds
        ):
            nemesis.strike()
            nemesis.heal()
            if chance.random() < 0.75 or nemesis.is_next_destructive():
                self._wait_quiet(run)
                nemesis.is_settled = True
        healed = time.monotonic()
        self._wait_quiet(run)
        history = run.finish(healed)
        self.report(self._summary(history, nemesis))
        self._wait_in_sync()
        problems = [*run.errors(), *nemesis.unexpected_ends]
        problems += [*administrator.problems, *voter_changes.problems]
        problems += self._observe_nodes(history)
        for name, texts in anomalies(history).items():
            problems.append(f"{name}: {len(texts)}, such as {texts[:3]}")
        if problems:
            (self.directory / "history.pickle").write_bytes(pickle.dumps(history))
        return problems

    def _wait_in_sync(self) -> None:
        eventually(
            lambda: is_in_sync(self.cluster),
            "all nodes run and all replicas are in sync",
            RECOVERY_SECONDS,
        )

    def _wait_quiet(self, run: ClusterRun) -> None:
        """Wait until the cluster without faults is whole, acknowledges, serves (invariant 110)."""
        began = time.monotonic()
        self._wait_in_sync()
        in_sync = time.monotonic()
        run.wait_for_more(20)
        acknowledged = time.monotonic()
        run.wait_for_readers()
        self.report(
            f"quiet: in sync after {in_sync - began:.1f} s, acknowledged after"
            f" {acknowledged - began:.1f} s, read after {time.monotonic() - began:.1f} s"
        )
        assert not run.errors(), run.errors()

    def _summary(self, history: History, nemesis: Nemesis) -> str:
        assert self.clients is not None
        outcomes = [send.outcome for send in history.sends]
        ends = [transaction.outcome for transaction in history.transactions]
        events = Counter(map(str, history.session_events))
        return (
            f"faults {nemesis.counts}; sends { {o: outcomes.count(o) for o in set(outcomes)} },"
            f" {len(history.polls)} polls, {len(history.commits)} commits,"
            f" {len(history.committed)} reads of commits, {len(history.end_offsets)} of ends,"
            f" transactions { {o: ends.count(o) for o in set(ends)} },"
            f" sessions {dict(events.most_common(9))}{self.clients.summary()}"
        )

    def open_calls(self) -> list[str]:
        """Return the calls of clients that have not returned."""
        now = time.monotonic()
        return [
            f"{client.name} has been in {call.what} for {now - call.began:.1f} s"
            for client in (self.clients.clients if self.clients is not None else [])
            for call in list(client.history.calls)
            if call.ended > now and now > call.began + call.timeout
        ]

    def _observe_nodes(self, history: History) -> list[str]:
        """Add the nodes' copies and metadata to the history; return what is wrong with them."""
        history.views = views(self.cluster) or {}
        if not history.views:
            return ["a node has no metadata when all is over"]
        problems = self._wait_placed(history.views)
        replicas = {place: view.replicas for place, view in history.views[1].items()}
        for place, node_ids in replicas.items():
            if place not in history.ends:  # An internal topic; clients no longer write.
                history.ends[place] = self._end(place, node_ids)
        for node in self.cluster.nodes.values():
            if node.kind == "kafka":
                node.kill()  # The last ones would wait minutes for a majority of the controllers.
            elif code := node.stop():
                problems.append(f"node {node.id} stopped with exit code {code}")
        for place in history.ends:
            for node_id in replicas[place]:
                node = self.cluster.nodes[node_id]
                batches, sessions = read_copy(folder_of(node, f"{place[0]}-{place[1]}"))
                history.copies.setdefault(place, {})[node.id] = batches
                history.sessions[place] = sessions
        problems += self._add_metadata_logs(history)
        return problems

    def _wait_placed(self, views: Mapping[int, Mapping[Place, View]]) -> list[str]:
        """Wait until the nodes have the copies that their metadata name, and no others."""
        with suppress(AssertionError):
            eventually(
                lambda: not find_misplaced_copies(self.cluster, views),
                "no other copies",
                DELETION_SECONDS,
            )
        return find_misplaced_copies(self.cluster, views)

    def _end(self, place: Place, node_ids: Iterable[int]) -> int:
        """Return the smallest end of the copies of an internal partition on these nodes."""
        name = f"{place[0]}-{place[1]}"
        nodes = [self.cluster.nodes[node_id] for node_id in node_ids]
        copies = [read_copy(folder_of(node, name))[0] for node in nodes]
        return min((copy[-1].next_offset if copy else 0) for copy in copies)

    def _add_metadata_logs(self, history: History) -> list[str]:
        """Add the part of the metadata logs that all controllers have."""
        place = (METADATA_TOPIC, 0)
        copies = {}
        for node in self.cluster.controllers:
            copies[node.id], _ = read_copy(folder_of(node, f"{METADATA_TOPIC}-0"))
        if not all(copies.values()):
            return [f"no metadata log on nodes {[n for n, copy in copies.items() if not copy]}"]
        start = max(copy[0].base_offset for copy in copies.values())
        history.ends[place] = min(copy[-1].next_offset for copy in copies.values())
        history.copies[place] = {
            node_id: tuple(batch for batch in copy if batch.base_offset >= start)
            for node_id, copy in copies.items()
        }
        return []


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", choices=("kwire", "kafka"), default="kwire")
    parser.add_argument("--mode", choices=sorted(RUNS), default="idempotent")
    parser.add_argument("--seed", type=int, default=int(time.time()) // 86_400)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults happen")
    parser.add_argument("--kinds", type=int, default=1, help="the fewest kinds of faults")
    parser.add_argument("--only", nargs="*", default=[], help="the names of the faults to draw")
    parser.add_argument("--separate", action="store_true", help="3 controllers and 3 brokers")
    parser.add_argument("--brokers", type=int, default=3, help="the number of brokers, 3 or more")
    parser.add_argument("--dynamic", action="store_true", help="voters that can be changed")
    parser.add_argument("--without-elr", action="store_true", help="no eligible leader replicas")
    parser.add_argument("--directories", type=int, default=1, help="log directories of a node")
    parser.add_argument("--proxies", action="store_true", help="no namespaces, as without root")
    parser.add_argument("--directory", type=Path, help="where data and logs lie")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    if options.broker == "kafka":
        kafka.fetch()
    if options.proxies:
        reason: str | None = "--proxies"
    else:
        reason = enter_isolation(["-m", "compat_tests.nemesis.trial", *arguments])
    directory = options.directory or Path(tempfile.mkdtemp(prefix="nemesis-"))
    directory.mkdir(parents=True, exist_ok=True)
    faulthandler.dump_traceback_later(options.seconds + END_SECONDS, exit=True)
    trial = Trial(options, directory, reason)
    try:
        problems = trial.run()
    except (AssertionError, KafkaException) as error:
        problems = [repr(error), *trial.open_calls()]
    if not problems:
        print("no anomaly", flush=True)
        if options.directory is None:
            for volume in trial.volumes:
                subprocess.run(["umount", str(volume)], check=True)
            shutil.rmtree(directory)
        return 0
    for volume in trial.volumes:  # They end with this process.
        shutil.copytree(volume, volume.parent / "data-copy", dirs_exist_ok=True)
    print(f"\nWRONG with seed {options.seed}, see {directory}:", *problems, sep="\n  ", flush=True)
    return 1


if __name__ == "__main__":
    # Clients that hang must not keep the process.
    os._exit(main(sys.argv[1:]))

"""The links between the nodes of a cluster and to its clients, each of which can be cut or slow.

A link has a direction: ``cut(1, 2)`` loses what node 1 sends to node 2, and nothing else.
:data:`CLIENTS` is the end of all clients. There are two ways: each node in a Linux network
namespace of its own, joined by a bridge (:class:`Namespaces`), or proxies in front of each node
(`proxies.py`) where namespaces are not permitted.

Rules: a cut loses packets silently, so no end of a connection is notified; a firewall refuses them
(:meth:`Namespaces.refuse`), as ``iptables -j REJECT`` does; a slow link delays or loses some of
them (`relay.py`), and a cut of the same link goes before; ``heal`` mends all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import Final, Protocol

import attrs

from compat_tests.nemesis import relay
from compat_tests.nemesis.relay import Pace, Relay

CLIENTS: Final = 0
"""The end of links at which the clients are."""
HUB: Final = 254
"""The last byte of the clients' address."""
TAP: Final = "/dev/net/tun"
ISOLATED: Final = "KWIRE_ISOLATED"
"""Set in the environment of a process that runs in namespaces of its own."""
NO_MAC: Final = "02:00:00:00:de:ad"
"""A hardware address that no node has: the bridge delivers what is sent to it to no node."""
UNSHARE: Final = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


class Links(Protocol):
    """The operations of the faults on the network."""

    name: str

    def host(self, node_id: int) -> str:
        """Return the address that a node binds."""

    def prefix(self, node_id: int) -> tuple[str, ...]:
        """Return the beginning of a node's command line."""

    def cut(self, source: int, target: int) -> None:
        """Lose what the source sends to the target, until :meth:`heal`."""

    @property
    def can_refuse(self) -> bool:
        """Whether :meth:`refuse` works here."""

    def refuse(self, source: int, target: int, *, with_reset: bool) -> None:
        """Have the target's firewall refuse what the source sends, until :meth:`heal`.

        ``with_reset``: connections are reset; else an ICMP message says that the port is out of
        reach, which ends attempts to connect but not connections.
        """

    @property
    def can_slow(self) -> bool:
        """Whether :meth:`slow` works here."""

    def slow(self, source: int, target: int, pace: Pace) -> None:
        """Have what the source sends to the target arrive at this pace, until :meth:`heal`."""

    def unplug(self, node_id: int) -> None:
        """Cut a node off from all others, in both directions, until :meth:`heal`."""

    def heal(self) -> None: ...

    def close(self) -> None: ...


def isolated_command() -> tuple[str, ...] | str:
    """Return a command line's beginning that gives its process namespaces; else the reason why not.

    Everything in them ends with that process: the nodes, their networks and their volumes.
    """
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return "`unshare` or `ip` is missing"
    reasons = []
    for user in ((), ("--user", "--map-root-user")):
        prefix = ("unshare", *user, *UNSHARE)
        test = [*prefix, "sh", "-c", "mount -t tmpfs tmpfs /run && ip link add hub type bridge"]
        run = subprocess.run(test, capture_output=True, text=True, check=False)
        if run.returncode == 0:
            return prefix
        reasons.append(run.stderr.strip().splitlines()[:1])
    return f"namespaces are not permitted: {reasons}"


def enter_isolation(arguments: Sequence[str]) -> str | None:
    """Execute this program again in namespaces of its own; return the reason if there are none."""
    if os.environ.get(ISOLATED):
        return None
    prefix = isolated_command()
    if isinstance(prefix, str):
        return prefix
    os.environ[ISOLATED] = "1"
    os.execvp(prefix[0], [*prefix, sys.executable, *arguments])


def _run(*commands: str) -> None:
    for command in commands:
        run = subprocess.run(command.split(), capture_output=True, text=True, check=False)
        if run.returncode:
            raise RuntimeError(f"`{command}` failed: {run.stderr.strip()}")


@attrs.define
class Namespaces:
    """A network of one namespace for each node, and a bridge in the namespace of this process.

    Needs namespaces that belong to this process alone (:func:`enter_isolation`), for it creates
    the bridge with fixed names and addresses. A cut is a wrong hardware address of the target, a
    slow link that of the relay.
    """

    node_ids: tuple[int, ...]
    name: str = "network namespaces"
    _cuts: set[tuple[int, int]] = attrs.field(factory=set)
    _slow: dict[tuple[int, int], Pace] = attrs.field(factory=dict)
    _relay: Relay | None = None
    """The relay, from the first slow link on."""
    _unplugged: set[int] = attrs.field(factory=set)
    _with_rules: set[int] = attrs.field(factory=set)
    """Nodes whose firewall has rules."""

    @classmethod
    def create(cls, node_ids: Iterable[int]) -> Namespaces:
        links = cls(tuple(node_ids))
        hub = links.host(CLIENTS)
        _run(
            "mount -t tmpfs tmpfs /run",
            "ip link set lo up",
            f"ip link add hub address {_mac(CLIENTS)} type bridge",
            f"ip addr add {hub}/24 dev hub",
            "ip link set hub up",
        )
        for node_id in links.node_ids:
            _run(
                f"ip netns add n{node_id}",
                f"ip link add port{node_id} type veth"
                f" peer name eth0 address {_mac(node_id)} netns n{node_id}",
                f"ip link set port{node_id} master hub up",
                f"ip -n n{node_id} addr add {links.host(node_id)}/24 dev eth0",
                f"ip -n n{node_id} link set eth0 up",
                f"ip -n n{node_id} link set lo up",
            )
        return links

    def host(self, node_id: int) -> str:
        return f"10.77.0.{node_id or HUB}"

    def prefix(self, node_id: int) -> tuple[str, ...]:
        return ("nsenter", f"--net=/run/netns/n{node_id}")

    def cut(self, source: int, target: int) -> None:
        self._cuts.add((source, target))
        self._redirect(source, target, NO_MAC)

    def _redirect(self, source: int, target: int, mac: str) -> None:
        """Have the source send to this hardware address what is for the target."""
        _run(f"{self._neighbour(source, target, 'replace')} lladdr {mac} nud permanent")

    def _neighbour(self, source: int, target: int, action: str) -> str:
        namespace = f" -n n{source}" if source != CLIENTS else ""
        device = "eth0" if source != CLIENTS else "hub"
        return f"ip{namespace} neigh {action} {self.host(target)} dev {device}"

    @property
    def can_refuse(self) -> bool:
        return shutil.which("iptables") is not None

    def refuse(self, source: int, target: int, *, with_reset: bool) -> None:
        self._with_rules.add(target)
        rule = f"-I INPUT -s {self.host(source)} -p tcp -j REJECT"
        _run(f"{_firewall(target)} {rule}{' --reject-with tcp-reset' if with_reset else ''}")

    @property
    def can_slow(self) -> bool:
        return os.path.exists(TAP) and shutil.which("bridge") is not None

    def slow(self, source: int, target: int, pace: Pace) -> None:
        self._slow[source, target] = pace
        self._set_paces()
        if (source, target) not in self._cuts:
            self._redirect(source, target, relay.MAC)

    def _set_paces(self) -> None:
        if self._relay is None:
            self._relay = Relay()
        self._relay.set(
            {(source or HUB, target or HUB): pace for (source, target), pace in self._slow.items()},
            {node_id or HUB: _mac(node_id) for node_id in (CLIENTS, *self.node_ids)},
        )

    def unplug(self, node_id: int) -> None:
        self._unplugged.add(node_id)
        _run(f"ip link set port{node_id} down")

    def heal(self) -> None:
        for source, target in self._cuts | self._slow.keys():
            _run(self._neighbour(source, target, "del"))
        if self._slow:
            self._slow.clear()
            self._set_paces()
        for node_id in self._unplugged:
            _run(f"ip link set port{node_id} up")
        for node_id in self._with_rules:
            _run(f"{_firewall(node_id)} -F INPUT")
        self._cuts.clear()
        self._unplugged.clear()
        self._with_rules.clear()

    def close(self) -> None:
        """End the relay; the namespaces end with their processes."""
        if self._relay is not None:
            self._relay.close()


def _mac(node_id: int) -> str:
    """Return the hardware address of an end of links."""
    return f"02:00:00:00:01:{node_id or HUB:02x}"


def _firewall(node_id: int) -> str:
    """Return the beginning of a command for a node's firewall."""
    return f"ip netns exec n{node_id} iptables -w"


def all_links(node_ids: Iterable[int]) -> list[tuple[int, int]]:
    """Return every link of these nodes and the clients, in each direction."""
    return [*permutations((CLIENTS, *node_ids), 2)]

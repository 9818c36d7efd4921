"""The options of commands that run several nodes on this machine.

Rule: it imports next to nothing, because every `kwire` command builds all options.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

P = TypeVar("P", bound=argparse.ArgumentParser)


def add_cluster(commands: "argparse._SubParsersAction[P]", port: Callable[[str], int]) -> P:
    """Add the `cluster` command, which runs several nodes on this machine; return its parser."""
    cluster = commands.add_parser(
        "cluster",
        help="run several nodes on this machine until a signal stops them",
        description="Run several nodes on this machine, each a process that is broker and "
        "controller, until SIGTERM or SIGINT. It prints `kwire ready on HOST:PORT,HOST:PORT,…` "
        "once every node can answer every request; a terminal also shows the nodes' state.",
        epilog="The folder stores the nodes, so a later start needs only the option --data. "
        "Each node has its server.properties, which may be changed while it is stopped, its data "
        "and its server.log there. Exit codes: 0 clean shutdown, 1 bad usage or configuration, "
        "2 the data, an address or a node is not available.",
    )
    cluster.add_argument(
        "--nodes",
        "--brokers",
        type=node_count,
        metavar="N",
        help="the number of nodes (default: those in the folder, or 3)",
    )
    where = cluster.add_mutually_exclusive_group()
    where.add_argument(
        "--data",
        "--dir",
        type=Path,
        metavar="DIR",
        default=Path("kwire-cluster"),
        help="the folder of the nodes (default: ./kwire-cluster); an empty one is formatted",
    )
    where.add_argument(
        "--ephemeral", action="store_true", help="keep data in a temporary directory until exit"
    )
    cluster.add_argument(
        "--port",
        "--base-port",
        type=port,
        metavar="PORT",
        help="listen for clients on this port and those after it, one a node, and for controllers "
        "on the next ones (default: 9092; 0: any free ports)",
    )
    cluster.add_argument(
        "--cluster-id", metavar="ID", help="the id of a new cluster (default: a random one)"
    )
    cluster.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of all nodes that overrides their files'; may be repeated",
    )
    cluster.add_argument(
        "--restart", action="store_true", help="restart a node that exits unexpectedly"
    )
    cluster.add_argument(
        "--metrics-port",
        type=port,
        metavar="PORT",
        help="serve the metrics of all nodes on this port, and each node's on those after it",
    )
    return cluster


def add_processes(command: argparse.ArgumentParser, text: str) -> None:
    """Add the option for machines with several brokers."""
    command.add_argument(
        "--processes",
        type=node_count,
        metavar="N",
        help=f"{text} (docs/operations.md)",
    )


def node_count(text: str) -> int:
    from kwire.cluster.layout import NODES_AT_MOST

    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= NODES_AT_MOST):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {NODES_AT_MOST}")
    return int(text)

"""The options of `kwire users` and `kwire acls`. Loaded by every command, so it imports little.

Rule: no option takes a password, because every user of the machine can see a process's arguments.
"""

import argparse
from pathlib import Path
from typing import Final, TypeVar

MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
P = TypeVar("P", bound=argparse.ArgumentParser)


def add_users(commands: "argparse._SubParsersAction[P]") -> None:
    """Add the command that manages SCRAM users."""
    users = commands.add_parser(
        "users",
        help="add, list or remove users of a cluster",
        description="Manage the users that log in with SCRAM, on any Kafka cluster.",
    )
    actions = users.add_subparsers(dest="action", required=True)
    add = actions.add_parser("add", help="create a user, or change the user's password")
    _add_connection(add)
    add.add_argument("user", metavar="NAME", help="the user's name")
    add.add_argument(
        "--mechanism",
        choices=MECHANISMS,
        default=MECHANISMS[-1],
        help="the variant of SCRAM (default: SCRAM-SHA-512)",
    )
    add.add_argument(
        "--password-file",
        type=Path,
        metavar="FILE",
        help="a file whose first line is the password; - for standard input (default: ask)",
    )
    _add_connection(actions.add_parser("list", help="list the users"))
    remove = actions.add_parser("remove", help="remove a user")
    _add_connection(remove)
    remove.add_argument("user", metavar="NAME", help="the user's name")
    remove.add_argument(
        "--mechanism", choices=MECHANISMS, help="remove only this variant of SCRAM (default: both)"
    )


def add_acls(commands: "argparse._SubParsersAction[P]") -> None:
    """Add the command that manages ACLs."""
    acls = commands.add_parser(
        "acls",
        help="add, list or remove ACLs of a cluster",
        description="Manage ACLs, on any Kafka cluster.",
    )
    actions = acls.add_subparsers(dest="action", required=True)
    add = actions.add_parser("add", help="create ACLs")
    add.add_argument("principal", metavar="PRINCIPAL", help="such as User:alice; User:* for all")
    add.add_argument(
        "--deny", action="store_true", help="deny the operations (default: allow them)"
    )
    listing = actions.add_parser("list", help="list ACLs that fit all options")
    remove = actions.add_parser("remove", help="remove ACLs that fit all options")
    for action in (listing, remove):
        action.add_argument(
            "principal", metavar="PRINCIPAL", nargs="?", help="only those of this principal"
        )
    remove.add_argument(
        "--all", action="store_true", help="needed to remove every ACL, without another option"
    )
    for action in (add, listing, remove):
        _add_connection(action)
        _add_resource(action)


def _add_resource(command: argparse.ArgumentParser) -> None:
    """Add the options that name operations and resources."""
    command.add_argument(
        "operations",
        metavar="OPERATION",
        nargs="*",
        help="operations such as Read, Write, Describe; All for all of them",
    )
    resource = command.add_mutually_exclusive_group()
    for option in ("topic", "group", "transactional-id"):
        resource.add_argument(f"--{option}", metavar="NAME", help=f"the {option}; * for all")
    resource.add_argument("--cluster", action="store_true", help="the cluster itself")
    command.add_argument(
        "--prefix", action="store_true", help="all resources whose names begin with NAME"
    )
    command.add_argument("--host", metavar="ADDRESS", help="only clients at this address")


def _add_connection(command: argparse.ArgumentParser) -> None:
    """Add the options that name the cluster, and how to print the result."""
    command.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the client's settings, as for Kafka's tools: the client.properties of --secure",
    )
    command.add_argument(
        "--bootstrap-server",
        metavar="HOST:PORT",
        help="a broker (default: the file's, or 127.0.0.1:9092)",
    )
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")

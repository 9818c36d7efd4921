"""The commands `kwire users` and `kwire acls`.

Rule: a password comes from a terminal, a file or standard input, never from an argument, and is
never printed.
"""

import getpass
import json
import logging
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable, Mapping, Sequence

from kwire.admin.acls import AclRow, Selection, add_acls, list_acls, remove_acls
from kwire.admin.client_file import parse_client
from kwire.admin.connection import AdminError, Connection, run
from kwire.admin.users import User, add_user, list_users, remove_user
from kwire.configs.declare import ConfigError

Rows = Sequence[User] | Sequence[AclRow]


def run_admin(options: Namespace, properties: Mapping[str, str]) -> str:
    """Carry out a command and return what to print; raise ConfigError or AdminError."""
    logging.getLogger("kwire").addHandler(logging.NullHandler())  # Errors say the same.
    file = parse_client(properties, options.bootstrap_server)
    act = _users(options) if options.command == "users" else _acls(options)
    rows = run(file, act)
    kind = User if options.command == "users" else AclRow
    if options.json:
        return json.dumps([row._asdict() for row in rows], indent=2)
    return "\n".join(table(kind._fields, rows))


def table(titles: Sequence[str], rows: Rows) -> list[str]:
    """Return aligned columns below their titles; one line if there are no rows."""
    if not rows:
        return ["(none)"]
    cells = [list(titles), *(list(map(str, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


def _users(options: Namespace) -> Callable[[Connection], Awaitable[Rows]]:
    async def act(connection: Connection) -> Rows:
        if options.action == "add":
            return [await add_user(connection, options.user, options.mechanism, password)]
        if options.action == "remove":
            return await remove_user(connection, options.user, options.mechanism)
        return await list_users(connection)

    password = read_password(options) if options.action == "add" else ""
    return act


def _acls(options: Namespace) -> Callable[[Connection], Awaitable[Rows]]:
    selection = selection_of(options)

    async def act(connection: Connection) -> Rows:
        if options.action == "add":
            return await add_acls(connection, selection, deny=options.deny)
        if options.action == "remove":
            if selection.is_empty and not options.all:
                raise AdminError("this would remove every ACL; add --all to confirm")
            return await remove_acls(connection, selection)
        return await list_acls(connection, selection)

    return act


def selection_of(options: Namespace) -> Selection:
    """Return the ACLs that the options name; raise AdminError for options that do not fit."""
    principal, operations = options.principal, list(options.operations)
    if principal is not None and ":" not in principal:
        if options.action == "add":
            raise AdminError(f"{principal} is not a principal; write User:{principal}")
        operations, principal = [principal, *operations], None
    resources = {
        "Topic": options.topic,
        "Group": options.group,
        "TransactionalId": options.transactional_id,
    }
    named = [(kind, name) for kind, name in resources.items() if name is not None]
    resource, name = named[0] if named else (None, None)
    if options.cluster:
        resource = "Cluster"
    if options.prefix and name is None:
        raise AdminError("--prefix needs the name of a topic, group or transactional id")
    return Selection(principal, operations, resource, name, options.prefix, options.host)


def read_password(options: Namespace) -> str:
    """Return the password from the file, standard input or the terminal; raise ConfigError."""
    path = options.password_file
    if path is None:
        if not sys.stdin.isatty():
            raise ConfigError(
                "there is no terminal to ask for the password; give --password-file FILE, "
                "or - for standard input"
            )
        password = _ask(f"Password of {options.user}: ")
        if password != _ask("The same again: "):
            raise ConfigError("the passwords differ; try again")
    elif str(path) == "-":
        password = sys.stdin.readline().rstrip("\r\n")
    else:
        try:
            with path.open(encoding="utf-8") as file:
                password = file.readline().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8"
            raise ConfigError(f"cannot read {path}: {reason}") from None
    if not password:
        raise ConfigError("the password is empty; choose another one")
    return password


def _ask(prompt: str) -> str:
    """Return a password from the terminal; raise ConfigError if the terminal ends instead."""
    try:
        return getpass.getpass(prompt)
    except EOFError:  # Ctrl-D
        sys.stderr.write("\n")
        raise ConfigError("no password was typed; nothing has changed") from None

"""Opens or creates the folder of a cluster: plan, settings, formatted directories.

Rules: everything that can be rejected is rejected before the first file is written; an interrupted
first start is completed by the next one; a folder with other files is left alone.
"""

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from kwire.cluster.layout import (
    HOST,
    PLAN_FILE,
    DamagedPlan,
    Member,
    Plan,
    folder_of,
    members_from,
    parse_plan,
    properties,
)
from kwire.cluster.ports import free_ports
from kwire.types import random_uuid, uuid_bytes, uuid_text

PORTS_END: Final = 65536
_ELSEWHERE: Final = "name another folder with --data"


class BadRequestError(Exception):
    """The options cannot be satisfied; the message is for the operator."""


class CannotStartError(Exception):
    """The folder, an address or a node is not available; the message is for the operator."""


def open_cluster(
    directory: Path,
    *,
    count: int | None,
    default_count: int,
    port: int | None,
    cluster_id: str | None,
) -> Plan:
    """Return the plan of a folder with formatted nodes; create both if the folder is empty.

    A folder that has nodes keeps their number, ports and cluster id; different options are
    rejected.
    """
    try:
        plan = _read(directory)
        if plan is None:
            plan = _make(directory, count or default_count, port, cluster_id)
        else:
            _check(directory, plan, count, port, cluster_id)
        if plan.directory_ids:
            _format(directory, plan)
            plan = plan._replace(directory_ids={})
            _write(directory, plan)
    except OSError as error:
        raise CannotStartError(
            f"cannot use the folder {directory}: {error.strerror or error}; {_ELSEWHERE}"
        ) from error
    return plan


def _read(directory: Path) -> Plan | None:
    """Return the plan of a folder; None if the folder is empty or missing."""
    path = directory / PLAN_FILE
    try:
        return parse_plan(path.read_text())
    except FileNotFoundError:
        pass
    except (DamagedPlan, UnicodeDecodeError) as error:
        raise CannotStartError(
            f"{path} is damaged: {error}; restore a copy, or {_ELSEWHERE}"
        ) from error
    if directory.exists() and any(directory.iterdir()):
        raise CannotStartError(
            f"{directory} has other files but no {PLAN_FILE}, so it is not a cluster's folder; "
            f"{_ELSEWHERE}"
        )
    return None


def _check(
    directory: Path, plan: Plan, count: int | None, port: int | None, cluster_id: str | None
) -> None:
    """Reject options that contradict the existing nodes of a folder."""
    if count not in (None, len(plan.members)):
        raise BadRequestError(
            f"--nodes {count}: {directory} has {len(plan.members)} nodes; leave out --nodes, or "
            f"{_ELSEWHERE}"
        )
    if port not in (None, 0, plan.port):
        raise BadRequestError(
            f"--port {port}: the ports of the nodes in {directory} cannot be changed; "
            f"leave out --port, or {_ELSEWHERE}"
        )
    if cluster_id not in (None, plan.cluster_id):
        raise BadRequestError(
            f"--cluster-id {cluster_id}: {directory} has the cluster {plan.cluster_id}; leave out "
            f"--cluster-id, or {_ELSEWHERE}"
        )


def _make(directory: Path, count: int, port: int | None, cluster_id: str | None) -> Plan:
    """Write the plan and the settings of a new cluster."""
    if cluster_id is not None:
        _check_id(cluster_id)
    first_port = 9092 if port is None else port
    if first_port + 2 * count > PORTS_END:
        raise BadRequestError(
            f"--port {first_port}: {count} nodes need {2 * count} ports from this one up; "
            "choose a lower one"
        )
    plan = Plan(
        cluster_id or uuid_text(random_uuid(os.urandom)),
        first_port,
        tuple(_with_free_ports(count)) if first_port == 0 else members_from(first_port, count),
        {node + 1: uuid_text(random_uuid(os.urandom)) for node in range(count)},
    )
    _check_free(plan.members)
    directory.mkdir(parents=True, exist_ok=True)
    for member in plan.members:
        folder = folder_of(directory, member.id)
        folder.mkdir(exist_ok=True)
        (folder / "server.properties").write_text(properties(plan, member, directory))
    _write(directory, plan)
    return plan


def _check_id(text: str) -> None:
    try:
        uuid_bytes(text)
    except ValueError:
        raise BadRequestError(
            f"--cluster-id {text!r} is not a uuid in 22 characters of base64; "
            "`kwire random-uuid` prints a new one"
        ) from None


def _write(directory: Path, plan: Plan) -> None:
    """Replace the plan atomically."""
    temporary = directory / f"{PLAN_FILE}.tmp"
    with temporary.open("w") as file:
        file.write(plan.to_text())
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(directory / PLAN_FILE)


def _with_free_ports(count: int) -> Iterator[Member]:
    """Yield nodes with ports that no program uses now."""
    ports = free_ports(2 * count)
    for number in range(count):
        yield Member(number + 1, ports[number], ports[count + number])


def _check_free(members: Iterable[Member]) -> None:
    """Reject ports that another program uses, before anything is written."""
    for port in sorted(port for member in members for port in member[1:]):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                remedy = "choose other ports with --port"
                if error.errno == errno.EADDRINUSE:
                    remedy = f"stop the program that uses it, or {remedy}"
                raise CannotStartError(
                    f"cannot listen on {HOST}:{port}: {error.strerror}; {remedy}"
                ) from error


def _format(directory: Path, plan: Plan) -> None:
    """Format the nodes' directories in another process, which loads many modules."""
    program = [sys.executable, "-m", "kwire.cluster.formatting", str(directory)]
    run = subprocess.run(
        program, capture_output=True, text=True, check=False, start_new_session=True
    )
    if run.returncode:
        lines = run.stderr.strip().splitlines() or [f"exit code {run.returncode}"]
        raise CannotStartError(lines[-1])

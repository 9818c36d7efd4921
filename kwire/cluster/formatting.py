"""Formats the nodes of a new cluster: the program ``python -m kwire.cluster.formatting FOLDER``.

It runs in its own process, so that the supervisor of the nodes stays small without the modules that
formatting loads. A node that is already formatted, by an interrupted run, is left alone.
"""

import sys
from pathlib import Path

from kwire.cluster.layout import PLAN_FILE, Plan, folder_of, parse_plan
from kwire.configs.load import broker_config
from kwire.configs.properties import parse_properties
from kwire.storage_format.directories import CannotOpenError, format_node
from kwire.types import uuid_bytes


def main(directory: Path) -> None:
    """Format the nodes; exit with one line on stderr if that fails."""
    plan = parse_plan((directory / PLAN_FILE).read_text())
    try:
        for node in plan.directory_ids:
            format_member(plan, node, directory)
    except (CannotOpenError, ValueError, OSError) as error:
        sys.exit(f"cannot format {folder_of(directory, node)}: {error}")


def format_member(plan: Plan, node: int, directory: Path) -> None:
    """Format one node's directory with the directory id from the plan."""
    config = broker_config(
        parse_properties((folder_of(directory, node) / "server.properties").read_text())
    )
    own_id = uuid_bytes(plan.directory_ids[node])
    lines = format_node(
        config,
        plan.cluster_id,
        ignore_formatted=True,
        how=plan.initial_controllers if config.is_controller else None,
        random_bytes=lambda count: own_id[:count],
    )
    for _ in lines:
        pass


if __name__ == "__main__":
    main(Path(sys.argv[1]))

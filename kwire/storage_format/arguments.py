"""The options of `kwire format`, which are those of Kafka's storage tool."""

import argparse
from pathlib import Path


def add_format(form: argparse.ArgumentParser) -> None:
    """Add the options of Kafka's storage tool."""
    form.add_argument(
        "--cluster-id",
        "-t",
        required=True,
        metavar="ID",
        help="the cluster's id, as random-uuid prints",
    )
    form.add_argument(
        "--config",
        "-c",
        type=Path,
        required=True,
        metavar="FILE",
        help="the node's server.properties",
    )
    form.add_argument(
        "--ignore-formatted",
        "-g",
        action="store_true",
        help="skip directories that are already formatted",
    )
    form.add_argument(
        "--release-version",
        "-r",
        metavar="RELEASE",
        help="the release whose metadata.version the new cluster gets",
    )
    form.add_argument(
        "--feature",
        "-f",
        action="append",
        default=[],
        metavar="NAME=LEVEL",
        help="the level of a feature in the new cluster; may be repeated",
    )
    form.add_argument(
        "--add-scram",
        "-S",
        action="append",
        default=[],
        metavar="CREDENTIAL|@FILE",
        help="a user of the new cluster: SCRAM-SHA-256=[name=NAME,password=PASSWORD], or a file "
        "with a user in each line, which the list of processes does not show; may be repeated",
    )
    first = form.add_mutually_exclusive_group()
    first.add_argument(
        "--standalone", "-s", action="store_true", help="this node is the quorum's only voter"
    )
    first.add_argument(
        "--initial-controllers",
        "-I",
        metavar="ID@HOST:PORT:DIRECTORY,…",
        help="the quorum's first voters, the same list on each of them; DIRECTORY is a uuid each",
    )
    first.add_argument(
        "--no-initial-controllers",
        "-N",
        action="store_true",
        help="the quorum has other voters: this is a broker, or a controller that joins later",
    )

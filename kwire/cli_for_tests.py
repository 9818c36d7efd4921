"""The commands and options of the command line that are for tests of applications.

Rule: nothing of ``kwire.testing`` is imported before one of them is used.
"""

import argparse
import gc
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeVar

if TYPE_CHECKING:
    from kwire.configs.broker import BrokerConfig
    from kwire.node.run import StopSignals

Fail = Callable[[object, int], NoReturn]
"""Ends the process with a reason and an exit code."""
Port = Callable[[str], int]
"""Parses the number of a port."""
Properties = Mapping[str, str]
P = TypeVar("P", bound=argparse.ArgumentParser)
BAD_USAGE = 1
BAD_DATA = 2


def add_control_port(command: argparse.ArgumentParser, port: Port) -> None:
    command.add_argument(
        "--control-port",
        type=port,
        metavar="PORT",
        help="let tests control this over HTTP here, on 127.0.0.1 (0: any free port)",
    )


def add_control(commands: "argparse._SubParsersAction[P]", port: Port) -> None:
    """Add the `control` command, a client of `--control-port`, with its options."""
    control = commands.add_parser(
        "control",
        help="control a test broker that has a --control-port",
        description="Call a verb of a running `kwire serve --control-port PORT` and print the "
        "result as JSON; without VERB, list the verbs. Exit codes: 0 done, 1 failed.",
        epilog="Example: kwire control --port 9094 add-fault action=fail api=Produce "
        "error=NOT_LEADER_OR_FOLLOWER topic=orders times=2",
    )
    control.add_argument(
        "--port", type=port, metavar="PORT", required=True, help="the --control-port of the server"
    )
    control.add_argument("verb", nargs="?", metavar="VERB", help="what to do")
    control.add_argument("arguments", nargs="*", metavar="NAME=VALUE", help="the verb's arguments")


def serve(
    options: argparse.Namespace,
    properties: Properties,
    parse: "Callable[[Properties], BrokerConfig]",
    listeners_on: Callable[[Properties, int], Properties],
    signals: "StopSignals",
    fail: Fail,
) -> None:
    """Run a node that tests control over HTTP, until a signal stops it.

    ``listeners_on`` returns the settings that name a port, which replaces port 0 in a restart.
    """
    if options.metrics_port is not None or options.supervised or options.secure is not None:
        fail(
            "--control-port cannot be combined with --metrics-port, --supervised or --secure: "
            "leave them out",
            BAD_USAGE,
        )
    from kwire.testing.control.serving import serve_with_control
    from kwire.testing.errors import BrokerError

    config = parse(properties)

    def config_on(client_port: int) -> "BrokerConfig":
        if not client_port or config.broker_endpoints[0].port:
            return config
        return parse({**properties, **listeners_on(properties, client_port)})

    gc.enable()
    try:
        serve_with_control(
            config_on,
            signals,
            cluster_id=options.cluster_id,
            control_port=options.control_port,
            control_ready=partial(_print_address, "kwire control on http://"),
            ready=partial(_print_address, "kwire ready on "),
        )
    except BrokerError as error:
        fail(error, BAD_DATA)


def control(options: argparse.Namespace, fail: Fail) -> None:
    """Call a verb of a test broker, or list the verbs."""
    from kwire.testing.control.client import call_verb, describe_verbs
    from kwire.testing.errors import BrokerError

    try:
        if options.verb is None:
            _write("\n".join(describe_verbs(options.port)))
        else:
            _write(call_verb(options.port, options.verb, options.arguments))
    except BrokerError as error:
        fail(error, BAD_USAGE)


def _print_address(text: str, host: str, port: int) -> None:
    from kwire.types import in_address

    _write(f"{text}{in_address(host)}:{port}")


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()

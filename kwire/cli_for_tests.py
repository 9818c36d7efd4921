"""The commands and options of the command line that are for tests of applications.

Rule: nothing of ``kwire.testing`` is imported before one of them is used.
"""

import argparse
import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from kwire.stderr_log import log_to_stderr

if TYPE_CHECKING:
    from kwire.configs.broker import BrokerConfig
    from kwire.net.listener import Address
    from kwire.node.run import StopSignals
    from kwire.testing.releases import Release

Fail = Callable[[object, int], NoReturn]
"""Ends the process with a reason and an exit code."""
Port = Callable[[str], int]
"""Parses the number of a port."""
Properties = Mapping[str, str]
P = TypeVar("P", bound=argparse.ArgumentParser)
LOOPBACK = "127.0.0.1"
PORT_MAX = 65535
BAD_USAGE = 1
BAD_DATA = 2


def add_test_options(command: argparse.ArgumentParser, port: Port) -> None:
    """Add the options of a server that tests control."""
    command.add_argument(
        "--control-port",
        type=port,
        metavar="PORT",
        help="let tests control this over HTTP here, on 127.0.0.1 (0: any free port)",
    )
    command.add_argument(
        "--max-versions",
        type=_release,
        metavar="RELEASE",
        help="let clients see the APIs and versions of an older Kafka, such as 3.7",
    )
    command.add_argument(
        "--registry-port",
        type=port,
        metavar="PORT",
        help="serve a schema registry for tests here, on 127.0.0.1 (0: any free port)",
    )


def add_control(commands: "argparse._SubParsersAction[P]", port: Port) -> None:
    """Add the `control` command, a client of `--control-port`, with its options."""
    control = commands.add_parser(
        "control",
        help="control a test broker that has a --control-port",
        description="Call a verb of a running command with --control-port PORT and print the "
        "result as JSON; without VERB, list the verbs. Exit codes: 0 done, 1 failed.",
        epilog="Example: kwire control --port 9094 add-fault action=fail api=Produce "
        "error=NOT_LEADER_OR_FOLLOWER topic=orders times=2",
    )
    control.add_argument(
        "--port", type=port, metavar="PORT", required=True, help="the --control-port of the server"
    )
    control.add_argument("verb", nargs="?", metavar="VERB", help="what to do")
    control.add_argument("arguments", nargs="*", metavar="NAME=VALUE", help="the verb's arguments")


def add_proxy(commands: "argparse._SubParsersAction[P]", port: Port) -> P:
    """Add the `proxy` command, which arranges faults in front of a cluster; return its parser."""
    proxy = commands.add_parser(
        "proxy",
        help="let requests to any Kafka cluster go wrong, for tests",
        description="Pass the requests of clients on to the brokers of a cluster, and let those go "
        "wrong that a test wants, until SIGTERM or SIGINT. It prints `kwire ready on HOST:PORT`, "
        "the address for clients. A broker with the id N gets the port PORT+1+N. While the cluster "
        "cannot be reached, clients are disconnected, and a line of the log says why.",
        epilog="Exit codes: 0 clean shutdown, 1 bad usage, 2 an address is not available.",
    )
    proxy.add_argument(
        "--target", required=True, metavar="HOST:PORT,…", help="brokers of the cluster"
    )
    proxy.add_argument(
        "--listen",
        default="9092",
        metavar="[HOST:]PORT",
        help="the address for clients (127.0.0.1:9092; port 0: any free ports)",
    )
    add_test_options(proxy, port)
    proxy.add_argument("--target-tls", action="store_true", help="encrypt connections to brokers")
    proxy.add_argument(
        "--target-ca",
        type=Path,
        metavar="FILE",
        help="trust these certificates (PEM) of --target-tls (default: those of the system)",
    )
    return proxy


def check_options(options: argparse.Namespace, fail: Fail) -> None:
    """Reject options that only make sense for a server that tests control."""
    for_tests = {"max-versions": options.max_versions, "registry-port": options.registry_port}
    used = [name for name, value in for_tests.items() if value is not None]
    if used and options.control_port is None:
        fail(f"--{used[0]} is for tests: give a --control-port too", BAD_USAGE)


def serve(
    options: argparse.Namespace,
    properties: Properties,
    parse: "Callable[[Properties], BrokerConfig]",
    listeners_on: Callable[[Properties, int], Properties],
    signals: "StopSignals",
    fail: Fail,
) -> None:
    """Run a node that tests control over HTTP, until a signal stops it.

    ``listeners_on`` returns the listener settings for the port in use, so that a restart keeps it.
    """
    if options.metrics_port is not None or options.supervised or options.secure is not None:
        fail(
            "--control-port cannot be combined with --metrics-port, --supervised or --secure: "
            "leave them out",
            BAD_USAGE,
        )
    from kwire.net.listener import Address
    from kwire.testing.control.serving import serve_with_control
    from kwire.testing.errors import BrokerError

    config = parse(properties)

    def config_on(client_port: int) -> "BrokerConfig":
        if not client_port or config.broker_endpoints[0].port:
            return config
        return parse({**properties, **listeners_on(properties, client_port)})

    gc.enable()
    try:
        with _registry(options.registry_port):
            serve_with_control(
                config_on,
                signals,
                cluster_id=options.cluster_id,
                release=options.max_versions,
                control=Address(LOOPBACK, options.control_port),
                control_ready=partial(_print_addresses, "kwire control on http://"),
                ready=partial(_print_addresses, "kwire ready on "),
            )
    except BrokerError as error:
        fail(error, BAD_DATA)


def cluster(options: argparse.Namespace, fail: Fail) -> None:
    """Run a cluster that tests control over HTTP, until a signal stops it."""
    others = (options.metrics_port, options.cluster_id, options.secure)
    if not options.ephemeral or options.restart or any(other is not None for other in others):
        fail(
            "--control-port needs --ephemeral, and cannot be combined with --restart, "
            "--metrics-port, --cluster-id or --secure",
            BAD_USAGE,
        )
    settings = dict(override.partition("=")[::2] for override in options.override)
    log_to_stderr(options.log_level)
    from kwire.net.listener import Address
    from kwire.node.run import StopSignals
    from kwire.testing.control.serving import cluster_with_control
    from kwire.testing.errors import BrokerError

    try:
        with StopSignals() as signals:
            signals.end_at_once_by(lambda: None)
            with _registry(options.registry_port):
                cluster_with_control(
                    options.nodes or 3,
                    9092 if options.port is None else options.port,
                    settings,
                    signals,
                    release=options.max_versions,
                    control=Address(LOOPBACK, options.control_port),
                    control_ready=partial(_print_addresses, "kwire control on http://"),
                    ready=partial(_print_addresses, "kwire ready on "),
                )
    except BrokerError as error:
        fail(error, BAD_DATA)


def container(
    config: "BrokerConfig",
    cluster_id: str | None,
    control_port: int,
    signals: "StopSignals",
    fail: Fail,
    words: str,
) -> None:
    """Run the node of a container that tests control over HTTP, until a signal stops it.

    The control port listens on every address, because the port that a container publishes leads to
    the container's own. ``words`` is printed once the node is ready.
    """
    from kwire.net.listener import Address
    from kwire.testing.control.serving import serve_with_control
    from kwire.testing.errors import BrokerError

    def ready(addresses: "Sequence[Address]") -> None:
        _print_addresses("kwire ready on ", addresses)
        _write(words.rstrip("\n"))

    gc.enable()
    try:
        serve_with_control(
            lambda port: config,
            signals,
            cluster_id=cluster_id,
            release=None,
            control=Address("0.0.0.0", control_port),
            control_ready=partial(_print_addresses, "kwire control on http://"),
            ready=ready,
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


def proxy(options: argparse.Namespace, fail: Fail) -> None:
    """Run a proxy in front of a cluster until a signal stops it."""
    targets = [_address(text) for text in options.target.split(",")]
    listen = _address(options.listen)
    if not all(target is not None and target[1] for target in targets):
        fail(f"--target {options.target}: expected HOST:PORT,… of brokers", BAD_USAGE)
    if listen is None:
        fail(f"--listen {options.listen}: expected PORT or HOST:PORT", BAD_USAGE)
    if options.target_ca is not None and not options.target_tls:
        fail("--target-ca has no effect without --target-tls; give both", BAD_USAGE)
    log_to_stderr(options.log_level)
    from kwire.net.listener import Address
    from kwire.node.run import StopSignals
    from kwire.testing.errors import BrokerError
    from kwire.testing.proxy.serving import run_proxy, tls_context

    try:
        with StopSignals() as signals:
            signals.end_at_once_by(lambda: None)
            with _registry(options.registry_port):
                run_proxy(
                    [Address(*target) for target in targets if target is not None],
                    Address(*listen),
                    signals,
                    tls=tls_context(options.target_ca) if options.target_tls else None,
                    release=options.max_versions,
                    control_port=options.control_port,
                    control_ready=partial(_print_addresses, "kwire control on http://"),
                    ready=partial(_print_addresses, "kwire ready on "),
                )
    except BrokerError as error:
        fail(error, BAD_DATA)


def _release(name: str) -> "Release":
    from kwire.testing.errors import BrokerError
    from kwire.testing.releases import parse_release

    try:
        return parse_release(name)
    except BrokerError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


@contextmanager
def _registry(port: int | None) -> Iterator[None]:
    """Serve a schema registry inside the context if ``port`` is set."""
    if port is None:
        yield
        return
    from kwire.testing.registry.server import SchemaRegistry

    with SchemaRegistry(port=port) as registry:
        _write(f"kwire registry on {registry.url}")
        yield


def _address(text: str) -> tuple[str, int] | None:
    """Return the host and the port in a text; None if it has no port."""
    host, _, number = text.rpartition(":")
    if not (number.isascii() and number.isdigit() and int(number) <= PORT_MAX):
        return None
    return host.strip("[]") or "127.0.0.1", int(number)


def _print_addresses(text: str, addresses: "Sequence[Address]") -> None:
    from kwire.types import in_address

    _write(text + ",".join(f"{in_address(host)}:{port}" for host, port in addresses))


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()

"""The command line: reads arguments and calls the modules that do the work.

Exit codes: 0 success, 1 bad usage or configuration, 2 the data or an address is not available.
Errors are one line on stderr, `kwire: what failed: why; what to do`. Only the modules of the chosen
command are imported, so that a test does not wait long for a broker to start.
"""

import argparse
import contextlib
import gc
import logging
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from kwire import __version__, cli_for_tests
from kwire.configs.standalone import ALONE, PROMPT_GROUPS
from kwire.operating_system import UnsupportedSystemError, check_system
from kwire.stderr_log import log_to_stderr

if TYPE_CHECKING:
    from kwire.configs.broker import BrokerConfig
    from kwire.node.run import Beside, StopSignals

logger = logging.getLogger(__name__)

BAD_USAGE = 1
BAD_DATA = 2

COLLECTOR: Final = (700, 10, 2)
"""The garbage collector's thresholds. After 7,700 new surviving objects, a collection visits and
freezes them (:mod:`kwire.node.garbage`): 2 ms.
"""


class Parser(argparse.ArgumentParser):
    """A parser that reports bad usage in one line, with exit code 1."""

    def error(self, message: str) -> NoReturn:
        fail(f"{message} (see {self.prog} --help)")


def fail(message: object, code: int = BAD_USAGE) -> NoReturn:
    print(f"kwire: {message}", file=sys.stderr)
    sys.exit(code)


class PrintVersion(argparse.Action):
    """The option that prints the version, and the implementation of kwire.speedups in use."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from kwire.speedups import IMPLEMENTATION

        print(f"kwire {__version__} (speedups: {IMPLEMENTATION})")
        sys.exit(0)


def parser() -> Parser:
    top = Parser(
        prog="kwire",
        description="A server that speaks the Apache Kafka protocol.",
        epilog="`kwire serve` alone runs one node on 127.0.0.1:9092 with its data in ./kwire-data.",
    )
    top.add_argument("--version", action=PrintVersion, nargs=0, help="print the version and exit")
    commands = top.add_subparsers(dest="command", required=True, parser_class=Parser)

    from kwire.admin.arguments import add_acls, add_users
    from kwire.cluster.arguments import add_cluster, add_processes
    from kwire.storage_format.arguments import add_format

    add_processes(
        add_serve(commands), "run N brokers with consecutive ids, each in its own process"
    )
    cluster = add_cluster(commands, port)
    add_secure(cluster, "`secure` in the folder of the nodes")
    cli_for_tests.add_test_options(cluster, port)
    add_log_level(cluster)
    form = commands.add_parser(
        "format",
        help="prepare a node's empty data directories",
        description="Prepare a node's empty data directories, as Kafka's storage tool does. "
        "`kwire serve` does it itself for a node that is its own quorum.",
    )
    add_format(form)
    add_processes(form, "prepare the directories of this machine's N brokers")

    dump = commands.add_parser(
        "dump-log",
        help="print the content of log, index and snapshot files",
        description="Print the content of log, index, checkpoint and snapshot files.",
    )
    dump.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="*.log, *.index, *.checkpoint, …"
    )
    dump.add_argument(
        "--records", action="store_true", help="print each record too, metadata by its fields"
    )
    check = commands.add_parser(
        "check-log",
        help="look for damage in the files of logs",
        description="Read every batch and index of logs and report damage, one line each. No "
        "broker may use the data. Exit code 0: no damage, 2: damage or an unreadable file.",
    )
    check.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="a data directory, a partition or *.log"
    )
    commands.add_parser(
        "random-uuid",
        help="print a new uuid, for a cluster or a directory",
        description="Print a new uuid, for a cluster or a directory.",
    )
    cli_for_tests.add_control(commands, port)
    add_log_level(cli_for_tests.add_proxy(commands, port))
    add_container(commands)
    add_users(commands)
    add_acls(commands)
    return top


def add_serve(commands: "argparse._SubParsersAction[Parser]") -> Parser:
    """Add the `serve` command, which runs a node, with its options."""
    serve = commands.add_parser(
        "serve",
        help="run a node until a signal stops it",
        description="Run a node until SIGTERM, SIGINT or SIGHUP. It prints `kwire ready on "
        "HOST:PORT` once it can answer every request; its log goes to stderr.",
        epilog="Without --config it is a broker and its own controller, for clients on this "
        "machine. Exit codes: 0 clean shutdown, 1 bad usage or configuration, 2 the data or an "
        "address is not available.",
    )
    serve.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="settings, in the form of Kafka's server.properties",
    )
    serve.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting that overrides the file's; may be repeated",
    )
    serve.add_argument(
        "--cluster-id", metavar="ID", help="the id of a new cluster (default: a random one)"
    )
    serve.add_argument(
        "--port",
        type=port,
        metavar="PORT",
        help="listen for clients here (0: any free port) and for controllers on any free port",
    )
    serve.add_argument(
        "--ephemeral", action="store_true", help="keep data in a temporary directory until exit"
    )
    add_secure(serve, "beside the data directory")
    serve.add_argument(
        "--supervised",
        nargs="?",
        const="",
        metavar="NAME",
        help="shut down cleanly when standard input ends; answer each line of it with figures; the "
        "log's lines have NAME",
    )
    add_log_level(serve)
    cli_for_tests.add_test_options(serve, port)
    serve.add_argument(
        "--metrics-port",
        type=port,
        metavar="PORT",
        help="serve Prometheus metrics, /livez and /readyz over HTTP here",
    )
    serve.add_argument(
        "--metrics-host",
        metavar="HOST",
        help="the address of --metrics-port (that of the first listener for clients; with --secure "
        "127.0.0.1)",
    )
    return serve


def add_secure(command: argparse.ArgumentParser, place: str) -> None:
    command.add_argument(
        "--secure",
        nargs="?",
        const="",
        metavar="FOLDER",
        help="encrypt, let clients log in and check ACLs; certificates, passwords and client files "
        f"are created in FOLDER (default: {place})",
    )


def add_log_level(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--log-level",
        default="INFO",
        metavar="LEVEL",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        help="DEBUG, INFO (default), WARNING or ERROR",
    )


def add_container(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the command that the start scripts of the container image call, with its options."""
    container = commands.add_parser(
        "container",
        help="run a node by the environment variables of the container image",
        description="Run a node, or look after it, by the environment of kwire's container image "
        "(docs/containers.md). Exit codes as for serve; health: 0 healthy, 1 not.",
    )
    container.add_argument(
        "action",
        choices=("run", "configure", "health"),
        help="run the node; write its properties to --config; check that it answers",
    )
    container.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="run, health: take the properties from this file, not from the environment",
    )
    container.add_argument(
        "assignments", nargs="*", metavar="NAME=VALUE", help="further variables of the environment"
    )
    container.set_defaults(override=(), metrics_port=None, metrics_host=None, supervised=None)


def port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 65535")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit."""
    options = parser().parse_args(arguments)
    run: Mapping[str, Callable[[argparse.Namespace], None]] = {
        "serve": serve,
        "cluster": cluster,
        "format": format_,
        "dump-log": dump_log,
        "check-log": check_log,
        "random-uuid": random_uuid,
        "control": partial(cli_for_tests.control, fail=fail),
        "proxy": partial(cli_for_tests.proxy, fail=fail),
        "container": container,
        "users": admin,
        "acls": admin,
    }
    try:
        if options.command in ("serve", "cluster", "format", "check-log", "container"):
            check_system()
        run[options.command](options)
    except UnsupportedSystemError as error:
        fail(error)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def serve(options: argparse.Namespace) -> None:
    """Run a node until a signal stops it."""
    begin(options.log_level, options.supervised)
    if options.metrics_host is not None and options.metrics_port is None:
        fail("--metrics-host has no effect without --metrics-port; give both")
    cli_for_tests.check_options(options, fail)
    if options.processes is not None:
        return machine(options)
    from kwire.node.run import StopSignals

    with StopSignals() as signals, data_directory(options.ephemeral, signals) as directory:
        from kwire.configs.declare import ConfigError
        from kwire.secure.location import check_open

        properties, more, upkeep = serve_properties(options, directory), "", None
        try:
            if options.secure is None:
                check_open(properties)
            if options.control_port is not None:
                parse = partial(parse_config, file=options.config, overrides=options.override)
                cli_for_tests.serve(options, properties, parse, listeners_on, signals, fail)
                return
            if options.secure is not None:
                from kwire.secure.command import protect

                properties, upkeep, more = protect(options, properties)
                # Metrics are neither encrypted nor protected by a login.
                if options.metrics_host is None:
                    options.metrics_host = "127.0.0.1"
        except ConfigError as error:
            fail(error)
        beside = None if upkeep is None else upkeep.run
        run_node(options, properties, signals, lambda config: options.cluster_id, more, beside)


def begin(log_level: str, name: str | None = None) -> None:
    """Turn off the garbage collector until a node has been imported, and begin its log.

    Imported objects never become garbage, so the collector is off during the imports and ignores
    these objects later. This saves 20 ms at the start, and 15 ms in each full collection.
    """
    gc.disable()
    gc.set_threshold(*COLLECTOR)
    log_to_stderr(log_level, name)


def machine(options: argparse.Namespace) -> None:
    """Run the brokers of this machine, each in its own process, until a signal stops them."""
    from kwire.cluster.folders import BadRequestError, CannotStartError
    from kwire.cluster.machine_command import run_machine
    from kwire.configs.declare import ConfigError
    from kwire.node.run import StopSignals

    with StopSignals() as signals:
        signals.end_at_once_by(lambda: None)
        try:
            overrides = parse_overrides(options)
            warn_of_secrets(overrides)
            run_machine(options, overrides, signals)
        except (BadRequestError, ConfigError) as error:
            fail(error)
        except CannotStartError as error:
            fail(error, BAD_DATA)


def cluster(options: argparse.Namespace) -> None:
    """Run the nodes of a cluster, each in its own process, until a signal stops them."""
    if options.control_port is not None:
        return cli_for_tests.cluster(options, fail)
    cli_for_tests.check_options(options, fail)
    log_to_stderr(options.log_level)
    from kwire.cluster.command import run_cluster
    from kwire.cluster.folders import BadRequestError, CannotStartError
    from kwire.node.run import StopSignals

    with StopSignals() as stop_signals, data_directory(options.ephemeral, stop_signals) as folder:
        try:
            run_cluster(options, options.data if folder is None else folder, stop_signals)
        except BadRequestError as error:
            fail(error)
        except CannotStartError as error:
            fail(error, BAD_DATA)


def container(options: argparse.Namespace) -> None:
    """Run the node of a container, write its properties, or check its health."""
    from kwire.configs.declare import ConfigError
    from kwire.configs.files import with_variables
    from kwire.container import command
    from kwire.container.environment import log_level

    try:
        environment = command.environment_of(options)
        properties = command.properties_of(options, environment)
        if options.action == "configure":
            command.configure(
                options.config or fail("configure: give a file to --config"), properties
            )
            return
        properties = with_variables(properties)
        control_port = command.control_port_of(environment)
    except ConfigError as error:
        fail(error)
    if options.action == "health":
        from kwire.container.health import is_ready

        config = parse_config(properties, options.config, ())
        sys.exit(0 if is_ready(config.broker_endpoints or config.controller_endpoints) else 1)
    begin(log_level(environment))
    from kwire.container.directories import format_if_empty
    from kwire.node.run import StopSignals

    def cluster_id(config: "BrokerConfig") -> str | None:
        return format_if_empty(config, command.cluster_id_of(environment))

    with StopSignals() as signals:
        signals.end_at_once_by(lambda: None)
        if control_port is None:
            run_node(options, properties, signals, cluster_id, more=command.WORDS)
            return
        from kwire.storage_format.directories import CannotOpenError

        config = parse_config(properties, options.config, ())
        if not config.broker_endpoints:
            fail(f"{command.CONTROL_PORT} is set, but tests can control brokers only; remove it")
        try:
            new_cluster = cluster_id(config)
        except ConfigError as error:
            fail(error)
        except CannotOpenError as error:
            fail(error, BAD_DATA)
        cli_for_tests.container(config, new_cluster, control_port, signals, fail, command.WORDS)


def run_node(
    options: argparse.Namespace,
    properties: Mapping[str, str],
    signals: "StopSignals",
    cluster_id: "Callable[[BrokerConfig], str | None]",
    more: str = "",
    beside: "Beside | None" = None,
) -> None:
    """Run the node that the properties describe, until a signal stops it.

    ``cluster_id`` returns the id of a new cluster, or None for a random one. ``more`` is printed
    once the node is ready. ``beside`` is a task that runs with the node.
    """
    from kwire.configs.declare import ConfigError

    config = parse_config(properties, options.config, options.override)
    from kwire.node.run import run_until_signal
    from kwire.node.server import (
        CannotOpenError,  # imports every part of a node before the collector is on
    )
    from kwire.types import in_address

    def write(line: str) -> None:
        # A single write, even if Python does not buffer, because other nodes may share the stream.
        sys.stdout.write(line)
        sys.stdout.flush()

    def ready(host: str, number: int) -> None:
        gc.freeze()
        shown_host = in_address(host)
        try:
            write(f"kwire ready on {shown_host}:{number}\n{more}")
        except OSError as error:
            sys.stdout = None  # Otherwise Python's flush at exit fails too.
            logger.warning(
                "ready, but stdout is closed address=%s:%d error=%s", shown_host, number, error
            )

    gc.freeze()
    gc.enable()
    try:
        run_until_signal(
            config,
            signals,
            cluster_id=cluster_id(config),
            metrics_port=options.metrics_port,
            metrics_host=options.metrics_host,
            ready=ready,
            write=write if options.supervised is not None else None,
            beside=beside,
        )
    except ConfigError as error:
        fail(f"{origin(str(error), None, options.override)}{error}")
    except CannotOpenError as error:
        fail(error, BAD_DATA)


@contextlib.contextmanager
def data_directory(ephemeral: bool, signals: "StopSignals") -> Iterator[Path | None]:
    """Create a directory that is removed when the node ends; None for the configured one.

    The signal handlers are installed already. A signal that arrives while the directory is being
    created takes effect once the directory to remove is known.
    """
    if not ephemeral:
        signals.end_at_once_by(lambda: None)
        yield None
        return
    try:
        temporary = tempfile.TemporaryDirectory(prefix="kwire-", ignore_cleanup_errors=True)
    except OSError as error:
        fail(
            f"cannot create a temporary directory: {error.strerror}; set TMPDIR to another place",
            BAD_DATA,
        )
    with temporary as path:
        signals.end_at_once_by(temporary.cleanup)
        yield Path(path)


def serve_properties(options: argparse.Namespace, directory: Path | None) -> dict[str, str]:
    """Return the properties of the file, or :data:`ALONE`, changed by the options."""
    overrides = parse_overrides(options)
    if options.supervised is None:  # Otherwise the supervisor's command line is the operator's.
        warn_of_secrets(overrides)
    alone = {**ALONE, **(PROMPT_GROUPS if options.ephemeral else {})}
    if "log.dir" in overrides:
        del alone["log.dirs"]  # It would take precedence.
    properties = load_properties(options.config, overrides, alone)
    if options.port is not None:
        properties.update(listeners_on(properties, options.port))
    if directory is not None:
        properties.pop("metadata.log.dir", None)
        properties["log.dirs"] = str(directory / "data")
    return properties


def parse_overrides(options: argparse.Namespace) -> dict[str, str]:
    """Return the settings of the command line."""
    result = {}
    for override in options.override:
        key, separator, value = override.partition("=")
        if not separator or not key.strip():
            fail(f"--override {override}: expected KEY=VALUE")
        result[key.strip()] = value.strip()
    return result


def warn_of_secrets(overrides: Mapping[str, str]) -> None:
    """Log that the list of processes shows the secrets of the command line."""
    if overrides:
        from kwire.configs.checks import secrets_warnings

        for warning in secrets_warnings(overrides):
            logger.warning("%s", warning)


def listeners_on(properties: Mapping[str, str], client_port: int) -> dict[str, str]:
    """Return the listeners, with clients on ``client_port`` and the controller on any free port."""
    controllers = {
        name.strip() for name in properties.get("controller.listener.names", "").split(",")
    }
    result = []
    free = client_port
    for listener in properties.get("listeners", ALONE["listeners"]).split(","):
        name, scheme, rest = listener.strip().partition("://")
        host, colon, _ = rest.rpartition(":")
        if not scheme or not colon:
            return {}  # The check of the unchanged listeners will report the error.
        result.append(f"{name}://{host}:{0 if name in controllers else free}")
        free = free if name in controllers else 0
    changed = {"listeners": ",".join(result)}
    if "advertised.listeners" in properties:
        changed["advertised.listeners"] = ",".join(
            listener for listener in result if listener.partition("://")[0] not in controllers
        )
    return changed


def load_properties(
    file: Path | None, overrides: Mapping[str, str] = {}, alone: Mapping[str, str] = {}
) -> dict[str, str]:
    """Return the properties of a file, or ``alone`` without one, changed by ``overrides``.

    Variables of config providers are replaced by their values. Exits with one line on an error.
    """
    from kwire.configs.declare import ConfigError
    from kwire.configs.files import read_properties, with_variables

    try:
        properties = alone if file is None else read_properties(file)
    except ConfigError as error:
        fail(error)
    try:
        return with_variables({**properties, **overrides})
    except ConfigError as error:
        fail(f"{origin(str(error), file, list(overrides))}{error}")


def parse_config(
    properties: Mapping[str, str], file: Path | None, overrides: Sequence[str]
) -> "BrokerConfig":
    """Return the settings, or exit with one line that names the source of the wrong setting."""
    from kwire.configs.declare import ConfigError
    from kwire.configs.load import broker_config

    try:
        return broker_config(properties)
    except ConfigError as error:
        fail(f"{origin(str(error), file, overrides)}{error}")


def origin(message: str, file: Path | None, overrides: Sequence[str]) -> str:
    """Return the source of the settings that a message names: --override, or else the file."""
    for override in reversed(overrides):
        name = override.partition("=")[0].strip()
        if re.search(rf"(?<![\w.]){re.escape(name)}(?!\.?\w)", message):
            return f"--override {name}: "
    return "" if file is None else f"{file}: "


def format_(options: argparse.Namespace) -> None:
    from kwire.configs.declare import ConfigError
    from kwire.raftmeta.controller.features import SUPPORTED
    from kwire.storage_format.directories import CannotOpenError, format_node
    from kwire.storage_format.releases import BadLevelError, feature_levels
    from kwire.storage_format.scram_users import scram_records

    properties = load_properties(options.config)
    try:
        machine = [properties]
        if options.processes is not None:
            from kwire.cluster.machine import this_machine

            overrides = this_machine(properties, options.processes)
            machine = [{**properties, **own} for own in overrides]
        configs = [parse_config(settings, options.config, ()) for settings in machine]
        how = options.initial_controllers
        how = "standalone" if options.standalone else how
        how = "none" if options.no_initial_controllers else how
        for place, config in enumerate(configs):
            features = feature_levels(
                options.release_version, options.feature, SUPPORTED, dynamic=not config.voters
            )
            for line in format_node(
                config,
                options.cluster_id,
                options.ignore_formatted,
                how=None if place else how,
                features=features,
                extra=scram_records([] if place else options.add_scram, features),
            ):
                print(line)
    except (ConfigError, BadLevelError) as error:
        fail(error)
    except CannotOpenError as error:
        fail(error, BAD_DATA)


def admin(options: argparse.Namespace) -> None:
    """Manage the users or the ACLs of a cluster."""
    from kwire.admin.command import run_admin
    from kwire.admin.connection import AdminError
    from kwire.configs.declare import ConfigError

    properties = load_properties(options.config)
    try:
        print(run_admin(options, properties))
    except ConfigError as error:
        fail(error)
    except AdminError as error:
        fail(error, BAD_DATA)


def random_uuid(options: argparse.Namespace) -> None:
    from kwire import types

    print(types.uuid_text(types.random_uuid(os.urandom)))


def dump_log(options: argparse.Namespace) -> None:
    from kwire.log.inspection.dump import dump
    from kwire.raftmeta.storage.records import unpack
    from kwire.types import METADATA_TOPIC

    for path in options.files:
        of_metadata = path.suffix == ".checkpoint" or path.absolute().parent.name == (
            f"{METADATA_TOPIC}-0"
        )
        try:
            for line in dump(
                path, records=options.records, meaning=unpack if of_metadata else None
            ):
                print(line)
            sys.stdout.flush()
        except BrokenPipeError:
            sys.stdout = None  # The reader closed the pipe.
            return
        except OSError as error:
            fail(
                f"cannot read {path}: {error.strerror}; name files of a data directory, as "
                "kwire-data/TOPIC-0/*.log",
                BAD_DATA,
            )
        except ValueError as error:
            fail(f"{path}: {error}", BAD_DATA)


def check_log(options: argparse.Namespace) -> None:
    from kwire.log.inspection.check import Check, directory_in_use

    check, damage_count = Check(), 0
    for path in options.paths:
        if (used := directory_in_use(path)) is not None:
            text = "what it writes meanwhile can look damaged; stop it, or check a copy"
            print(f"kwire: warning: a broker is using {used}: {text}", file=sys.stderr)
        try:
            for damage in check.run(path):
                damage_count += 1
                print(damage, flush=True)
        except BrokenPipeError:
            sys.stdout = None  # The reader closed the pipe.
            sys.exit(BAD_DATA)
        except OSError as error:
            fail(f"cannot read {error.filename or path}: {error.strerror}", BAD_DATA)
        except ValueError as error:
            fail(error, BAD_DATA)
    print(
        f"checked segments={check.segment_count} batches={check.batch_count} "
        f"bytes={check.byte_count} damage={damage_count}"
    )
    if damage_count:
        sys.exit(BAD_DATA)

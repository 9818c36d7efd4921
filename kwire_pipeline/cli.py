"""The command line `kwire-pipeline COMMAND FILE.yaml`: parses arguments and calls commands.

Exit codes: 0 done; 1 a failure that a rerun may cure; 2 a wrong set-up or a refusal, which a rerun
would repeat; 143 stopped by SIGTERM and 130 by SIGINT before the end. All exit codes but 0 come
with one line on stderr, `kwire-pipeline: what failed: why; what to do`. Every key of the file is
also a flag, and flags take precedence: ``--source.bootstrap HOST:PORT``.
"""

import argparse
import functools
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final, NoReturn

import attrs

from kwire_pipeline.commands.check import in_short, preflight
from kwire_pipeline.commands.show import show, warner
from kwire_pipeline.config.document import ConfigError
from kwire_pipeline.config.load import TABLE, Flag, find_key
from kwire_pipeline.config.model import Pipeline, Source, Table
from kwire_pipeline.config.secrets import redact, secrets_of
from kwire_pipeline.config.template import Loaded, common_of, load_any
from kwire_pipeline.errors import EXIT_FAILURE, EXIT_REFUSAL, Failure, Refusal
from kwire_pipeline.explain import run_on_spark
from kwire_pipeline.hook import Hook
from kwire_pipeline.signals import (
    PROGRAM,
    Interrupted,
    exit_code,
    handle_with,
    interrupt,
    stop_line,
)


@attrs.frozen
class Option:
    """A flag of a command, or an argument after FILE."""

    name: str
    meaning: str
    value: str | None = None
    """The name of its value in the help; None for a flag without one."""
    argument: str = ""
    """The parameter of the command's function; by default it has the flag's name."""

    @property
    def parameter(self) -> str:
        return self.argument or self.name.removeprefix("--").replace("-", "_")

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        keywords: dict[str, str | None] = {"help": self.meaning, "metavar": self.value}
        if self.value is None:
            keywords = {"help": self.meaning, "action": "store_true"}
        if self.name.startswith("--"):
            keywords["dest"] = self.parameter
        parser.add_argument(self.name, **keywords)  # type: ignore[arg-type]


@attrs.frozen
class Command:
    """A command that takes a pipeline's file."""

    meaning: str
    options: tuple[Option, ...] = ()
    needs_brokers: bool = True
    """False for a command that uses neither brokers nor tables."""


ONE_TABLE: Final = Option("--table", "one of the tables, if each topic has its own", "NAME")
COMMANDS: Final[Mapping[str, Command]] = {
    "init": Command("Write a first FILE, with comments, to be edited."),
    "check": Command(
        "Say what is wrong with FILE, Java, pyspark, folders, brokers and topics; write nothing.",
    ),
    "plan": Command(
        "Show every key in force and the packages of the session; write nothing.", (ONE_TABLE,)
    ),
    "run": Command(
        "Write records to the tables until the end of the topics, or forever at an interval.",
        (
            Option("--adopt", "continue after the rows in the table, with a new checkpoint"),
            Option(
                "--from-start",
                "delete the pipeline's rows and dead letters, and begin again at source.start",
            ),
            Option(
                "--give-up",
                "the offsets that --adopt may skip, or whose rows --from-start may delete, though "
                'the topics no longer have them: {"TOPIC":{"PARTITION":[FIRST,END]}}',
                "OFFSETS",
            ),
            ONE_TABLE,
        ),
    ),
    "status": Command(
        "Show offsets, lag, the last batch, dead letters and the table's size.",
        (
            Option(
                "--json",
                "print one JSON object, or a line of JSON for each of many tables",
                argument="as_json",
            ),
            Option("--page", "also write a page of HTML about the last 24 hours", "PATH"),
            ONE_TABLE,
        ),
    ),
    "verify": Command(
        "Check that each committed offset is once in the table or dead letters.", (ONE_TABLE,)
    ),
    "replay": Command("Put dead letters through today's schema and expectations.", (ONE_TABLE,)),
    "backfill": Command(
        "Read a range of offsets or times again, and write the records that the tables lack.",
        (
            Option(
                "--from",
                'where it begins: a time, or offsets: {"TOPIC":{"PARTITION":OFFSET}}',
                "OFFSETS",
                "first",
            ),
            Option("--to", "where it ends, exclusive, in the same form", "OFFSETS", "end"),
            ONE_TABLE,
        ),
    ),
    "test": Command(
        "Turn samples of records into rows and dead letters, and compare them with expected ones.",
        (
            Option("samples", "a folder of samples, or one; see docs/pipeline.md", "SAMPLES"),
            Option("--write", "write the results that a sample does not name into its file"),
            Option("--topic", "the samples' topic, if each topic has its own table", "NAME"),
        ),
        needs_brokers=False,
    ),
    "maintain": Command(
        "Compact small files, expire snapshots, remove orphan files.", (ONE_TABLE,)
    ),
}
JSON_TO_ICEBERG: Final = Pipeline(
    name="default",
    source=Source(bootstrap="127.0.0.1:9092", topics=("any",)),
    table=Table(name="any.any", warehouse="any"),
    checkpoint="any",
)
"""The pipeline whose jars are listed for no file."""
HEAD_TEXT: Final = "Turn topics of Kafka into tables, each record once."
EXITS: Final = (
    "Exit codes: 0 done, 1 a failure that a rerun may cure, 2 a wrong set-up or a refusal, which a "
    "rerun meets again, 143 or 130 stopped by SIGTERM or SIGINT before the end."
)


class Parser(argparse.ArgumentParser):
    """A parser that reports bad usage in one line, with exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise Refusal(f"{message} (see {self.prog} --help)")


def parser() -> Parser:
    """Return the parser for everything that is not a key of the file."""
    top = Parser(prog=PROGRAM, description=HEAD_TEXT, epilog=EXITS, allow_abbrev=False)
    commands = top.add_subparsers(dest="command", required=True, parser_class=Parser)
    keys = "\n".join(
        f"  --{key.name} ({key.kind})\n      {key.meaning}"
        for key in TABLE.values()
        if key.section is None and key.sections is None
    )
    for name, command in COMMANDS.items():
        inner = commands.add_parser(
            name,
            help=command.meaning,
            description=command.meaning,
            epilog=f"{EXITS}\n\nEvery key of FILE is a flag, too, which comes first:\n{keys}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        inner.add_argument("file", metavar="FILE", help="the pipeline, in YAML")
        for option in command.options:
            option.add_to(inner)
    meaning = "Fetch every jar of a pipeline, for machines that cannot reach Maven."
    inner = commands.add_parser(
        "jars", help=meaning, description=meaning, epilog=EXITS, allow_abbrev=False
    )
    inner.add_argument("folder", metavar="DIR", help="the folder; it is created")
    inner.add_argument(
        "file", metavar="FILE", nargs="?", help="the pipeline (default: JSON into Iceberg)"
    )
    meaning = "Print the JSON Schema of FILE, with which editors complete and check its keys."
    commands.add_parser("schema", help=meaning, description=meaning, epilog=EXITS)
    return top


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[Flag]]:
    """Return the command's arguments, and the flags that are keys of the file.

    A flag with a dot is always taken for a key, so that an unknown key is rejected by name.
    """
    rest: list[str] = []
    flags: list[Flag] = []
    words = iter(arguments)
    for word in words:
        name, sign, text = word.removeprefix("--").partition("=")
        # The names that a user gives to sections may have hyphens.
        name = name if find_key(name) is not None else name.replace("-", "_")
        is_key = "." in name or (name != "table" and find_key(name) is not None)
        if not word.startswith("--") or not is_key:
            rest.append(word)
            continue
        value = text if sign else next(words, None)
        if value is None:
            raise Refusal(f"--{name} needs a value")
        flags.append(Flag(name, value))
    return rest, flags


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    secrets: set[str] = set()
    open_outputs()
    try:
        try:
            with handle_with(interrupt):
                return run(words, os.environ, secrets)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
        return fail("standard output was closed by its reader", EXIT_FAILURE, secrets)
    except ConfigError as error:
        return fail(first_line(str(error)), EXIT_REFUSAL, secrets)
    except Refusal as error:
        return fail(str(error), EXIT_REFUSAL, secrets)
    except Failure as error:
        return fail(str(error), EXIT_FAILURE, secrets)
    except Interrupted as signal:
        print(stop_line(signal.number), file=sys.stderr)
        return exit_code(signal.number)


def open_outputs() -> None:
    """Open /dev/null for outputs that were already closed at startup, which Python sets to None."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def discard_output() -> None:
    """Redirect the remaining output to /dev/null, so that flushing it at exit does not fail."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def first_line(text: str) -> str:
    """Return the first of several problems, and a hint how to see the others."""
    first, *others = text.splitlines()
    return f"{first} ({len(others)} more: {PROGRAM} check FILE)" if others else first


def fail(text: str, code: int, secrets: set[str]) -> int:
    line = redact(" ".join(text.split()), frozenset(secrets))
    print(f"{PROGRAM}: {line}", file=sys.stderr)
    return code


def run(arguments: Sequence[str], environment: Mapping[str, str], secrets: set[str]) -> int:
    """Parse the arguments and call the command; add the configuration's secrets to ``secrets``."""
    rest, flags = split_flags(arguments)
    options = parser().parse_args(rest)
    name: str = options.command
    module = importlib.import_module(f"kwire_pipeline.commands.{name}")
    code: int
    if name == "schema":
        code = module.schema(print)
        return code
    if name == "init":
        for note in module.init(options.file, flags, environment):
            print(note)
        print(f"{options.file} is written; edit it, then: {PROGRAM} check {options.file}")
        return 0
    file: str | None = options.file
    loaded = read_file(name, file, flags, environment) if file is not None else JSON_TO_ICEBERG
    pipeline = common_of(loaded)
    secrets.update(secrets_of(pipeline))

    def write(line: str) -> None:
        show(pipeline, [line])

    if file is None or name == "jars":
        code = module.jars(pipeline, options.folder, file or "FILE.yaml", environment, write)
        return code
    # A transform is next to the file, or on PYTHONPATH.
    sys.path.insert(0, str(Path(file).resolve().parent))
    if name == "check":
        write(f"ok    file      {file}")
        code = module.check(loaded, environment, write)
        return code
    chosen = COMMANDS[name]
    own = {option.parameter: getattr(options, option.parameter) for option in chosen.options}
    command = functools.partial(getattr(module, name), loaded, **own)
    # Nobody watches a run; the other commands answer the user who typed them.
    hook = Hook.of(pipeline, warner(pipeline))
    with hook.watch() if name == "run" else nullcontext():
        preflight(loaded, environment, needs_brokers=chosen.needs_brokers)
        return run_on_spark(command, pipeline.transform)


def read_file(
    command: str, file: str, flags: Sequence[Flag], environment: Mapping[str, str]
) -> Loaded:
    """Read a pipeline's file; `check` prints all of its problems."""
    try:
        return load_any(file, flags, environment)
    except ConfigError as error:
        if command != "check":
            raise
        problems = str(error).splitlines()
        for line in problems:
            print(f"wrong file      {line}")
        raise Refusal(in_short([f"file: {line}" for line in problems])) from None

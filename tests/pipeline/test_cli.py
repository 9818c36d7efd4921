"""The command line: a wrong set-up is one line and exit code 2, and no secret is shown."""

import importlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import attrs
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException, PythonException

from kwire_pipeline import broker, cli
from kwire_pipeline.broker import look_up
from kwire_pipeline.commands.check import check_folder, check_transform, preflight
from kwire_pipeline.config.load import Flag, load
from kwire_pipeline.config.model import Security, Source
from kwire_pipeline.config.values import Protocol
from kwire_pipeline.engine.by_key.key_proof import KeyProof
from kwire_pipeline.engine.proof import Proof
from kwire_pipeline.errors import Failure, Refusal
from kwire_pipeline.explain import launch_problem, run_on_spark, start_problem
from tests.support.pipeline.orders import SMALLEST


class Session:
    """A session of Spark that nobody asks for anything."""

    def stop(self) -> None:
        pass


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "orders.yaml").write_text(SMALLEST)
    return "orders.yaml"


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# Wrong set-ups -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--topic", "orders", "--table", "/lake"], "invalid choice: 'orders'"),
        (["--no-such"], "the following arguments are required: command"),
        (["check"], "the following arguments are required: FILE"),
        (["chek", "orders.yaml"], "invalid choice: 'chek'"),
        (["jars"], "the following arguments are required: DIR"),
        (["check", "orders.yaml", "--no-such"], "unrecognized arguments: --no-such"),
        (["check", "orders.yaml", "--trigger"], "--trigger needs a value"),
        (["init", "orders.yaml"], "orders.yaml already exists"),
        (["init", "no/such/folder.yaml"], "cannot be written: No such file or directory"),
        (["jars", "d", "none.yaml"], "none.yaml: cannot be read: No such file or directory"),
        (["init", "x.yaml", "--source.topic", "x"], "no such key; did you mean topics?"),
        (["init", "x.yaml", "--table.name", "x"], "table.name: 'x' is not NAMESPACE.TABLE"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(
    file: str, capsys: pytest.CaptureFixture[str], arguments: list[str], error: str
) -> None:
    assert cli.main(arguments) == 2
    output = capsys.readouterr()
    assert error in output.err
    assert len(output.err.splitlines()) == 1
    assert output.err.startswith("kwire-pipeline: ")
    assert output.out == ""


def test_flag_names_a_section_as_the_file_does() -> None:
    """Otherwise it would add another expectation beside that of the file."""
    words = ["run", "--expectations.not-cheap.check", "price > 9", "--max-bad-share=0.1"]
    rest, flags = cli.split_flags(words)
    assert rest == ["run"]
    assert flags == [
        Flag("expectations.not-cheap.check", "price > 9"),
        Flag("max_bad_share", "0.1"),
    ]


def test_first_of_several_problems_is_shown_with_the_way_to_the_others(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["jars", "d", file, "--trigger", "x", "--progress", "y"]) == 2
    assert "(1 more: kwire-pipeline check FILE)" in capsys.readouterr().err


def test_check_shows_all_problems_of_a_file(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", file, "--trigger", "x", "--progress", "y"]) == 2
    output = capsys.readouterr()
    assert [line.split(":")[0] for line in output.out.splitlines()] == [
        "wrong file      --trigger",
        "wrong file      --progress",
    ]
    assert output.err.startswith("kwire-pipeline: 2 checks failed, first: file: --trigger: ")
    assert len(output.err.splitlines()) == 1


def test_help_lists_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["check", "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "--source.security.mechanism" in text
    assert "Exit codes: 0 done, 1 a failure that a rerun may cure, 2 a wrong set-up" in text


def test_help_says_which_answer_to_a_refusal_deletes_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["run", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--adopt continue after the rows in the table" in text
    assert "--from-start delete the pipeline's rows and dead letters, and begin again" in text


# check ---------------------------------------------------------------------------------------
def test_check_goes_on_after_a_problem_and_a_broker_that_is_down_is_code_1(
    file: str, capsys: pytest.CaptureFixture[str], closed_port: int
) -> None:
    address = f"127.0.0.1:{closed_port}"
    assert cli.main(["check", file, "--source.bootstrap", address]) == 1
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert lines[0] == "ok    file      orders.yaml"
    problem = f"no broker can be reached: {address}: connection refused"
    assert f"wrong broker    {problem}" in lines[-1]
    assert output.err.startswith(f"kwire-pipeline: 1 check failed: broker: {problem}")
    assert len(output.err.splitlines()) == 1
    assert not Path("lake").exists()


def test_check_of_a_wrong_set_up_is_code_2_though_the_broker_is_down_too(
    file: str,
    capsys: pytest.CaptureFixture[str],
    closed_port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/no/java")
    address = f"127.0.0.1:{closed_port}"
    assert cli.main(["check", file, "--source.bootstrap", address]) == 2
    output = capsys.readouterr()
    assert "wrong java      JAVA_HOME is /no/java" in output.out
    assert output.err.startswith("kwire-pipeline: 2 checks failed, first: java: JAVA_HOME is /no")


def test_check_tries_the_masters_of_a_standalone_cluster(
    file: str, capsys: pytest.CaptureFixture[str], closed_port: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        cli.main(["check", file, "--spark.master", f"spark://127.0.0.1:{closed_port},{address}"])
    assert f"ok    master    spark://{address}" in capsys.readouterr().out
    cli.main(["check", file, "--spark.master", f"spark://127.0.0.1:{closed_port}"])
    words = f"no master of Spark can be reached: 127.0.0.1:{closed_port}: connection refused"
    assert f"wrong master    {words}" in capsys.readouterr().out


def test_a_server_that_speaks_no_kafka_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(
            Failure, match=f"{address} accepts connections, but does not answer as a"
        ):
            look_up(Source(bootstrap=address, topics=("orders",)), timeout_s=0.2)


def answer_with_topics(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let brokers answer with topics, without a connection."""
    monkeypatch.setattr("kwire_pipeline.broker.connect", lambda *_: "b:1")
    topics = dict.fromkeys(names, 1)
    monkeypatch.setattr("kwire_pipeline.broker._metadata", lambda *_: ("cluster", topics))


@pytest.mark.parametrize(
    "pattern", [r"\p{Alpha}+", r"\Qorders\E.*", "[a-z&&[^b]]+", r"orders\z", "[[:alpha:]]"]
)
def test_a_pattern_that_only_java_knows_is_left_to_spark(
    file: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    pattern: str,
) -> None:
    answer_with_topics(monkeypatch, "orders")
    assert look_up(Source(bootstrap="b:1", pattern=pattern)).topics == {}
    cli.main(["check", file, "--source.topics", "[]", "--source.pattern", pattern])
    assert "ok    broker    b:1, cluster cluster: source.pattern was not checked" in (
        capsys.readouterr().out
    )


JKS = {"kafka.ssl.truststore.location": "/a.jks", "kafka.ssl.truststore.password": "changeit"}
NO_HOSTNAME = {"kafka.ssl.endpoint.identification.algorithm": ""}


@pytest.mark.parametrize(
    ("security", "options", "untried"),
    [
        ({"protocol": "SSL"}, JKS, "kafka.ssl.truststore.location"),
        ({"protocol": "SASL_SSL"}, {"kafka.sasl.jaas.config": "a;"}, "kafka.sasl.jaas.config"),
        ({"protocol": "SASL_SSL", "mechanism": "AWS_MSK_IAM"}, {}, "AWS_MSK_IAM"),
        ({"protocol": "SSL"}, {}, "TLS with Java's own authorities"),
        ({"protocol": "SSL"}, NO_HOSTNAME, "TLS with Java's own authorities"),
        ({"protocol": "SSL", "ca_file": "ca.pem"}, {}, None),
        ({}, {}, None),
    ],
)
def test_security_that_only_java_has_is_left_to_spark(
    file: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    security: dict[str, str],
    options: dict[str, str],
    untried: str | None,
) -> None:
    """A set-up with which Spark works must not fail for what Python's client cannot do."""

    def no_answer(*_: object) -> NoReturn:
        raise Failure("does not answer as a Kafka broker")

    monkeypatch.setattr("kwire_pipeline.broker.connect", lambda *_: "b:1")
    monkeypatch.setattr("kwire_pipeline.broker._metadata", no_answer)
    flags = [
        word for name, text in security.items() for word in (f"--source.security.{name}", text)
    ]
    flags += [word for pair in options.items() for word in ("--source.options", "=".join(pair))]
    cli.main(["check", file, *flags])
    output = capsys.readouterr().out
    if untried is None:
        assert "wrong broker    does not answer" in output
    else:
        assert f"ok    broker    b:1 accepts connections ({untried}" in output


def test_check_of_host_names_is_off_for_python_too(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(bootstrap="b:1", options=NO_HOSTNAME, security=Security(protocol=Protocol.SSL))
    assert dict(broker._security(source)) == {"ssl_check_hostname": False}
    assert dict(broker._security(attrs.evolve(source, options={}))) == {}


def test_a_pattern_that_matches_no_topic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with_topics(monkeypatch, "orders", "returns")
    assert look_up(Source(bootstrap="b:1", pattern="ord.*")).topics == {"orders": 1}
    with pytest.raises(Refusal, match=r"no topic at b:1 matches 'order'"):
        look_up(Source(bootstrap="b:1", pattern="order"))


def test_topic_of_dead_letters_is_there_and_is_not_read(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_with_topics(monkeypatch, "orders", "orders-dead")
    source = Source(bootstrap="b:1", pattern="ord.*")
    with pytest.raises(Refusal, match=r"dead_letters.topic: orders-dead matches source.pattern"):
        look_up(source, letters="orders-dead")
    with pytest.raises(Refusal, match=r"dead_letters.topic: lost does not exist at b:1: create"):
        look_up(source, letters="lost")
    Path(file).write_text(SMALLEST.replace("table: shop.orders_dead", "topic: orders-dead"))
    cli.main(["check", file])
    assert "orders (1 partition); dead letters go to orders-dead" in capsys.readouterr().out


def test_check_tries_no_login_that_needs_kerberos(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        flags = ["--source.security.protocol", "SASL_SSL"]
        flags += ["--source.security.mechanism", "GSSAPI", "--source.bootstrap", address]
        cli.main(["check", file, *flags])
    assert "accepts connections (GSSAPI was not checked)" in capsys.readouterr().out


def test_folders_that_can_be_written(tmp_path: Path) -> None:
    assert check_folder(str(tmp_path)) == str(tmp_path)
    assert "(a run creates it)" in check_folder(f"file://{tmp_path}/new/deep")
    assert "not checked" in check_folder("s3a://bucket/lake")
    (tmp_path / "file").touch()
    with pytest.raises(Refusal, match=r"cannot be a folder: .*file is a file"):
        check_folder(str(tmp_path / "file" / "lake"))


def test_transform_beside_the_file(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("clean_orders.py").write_text("def clean(frame):\n    return frame\n")
    Path("broken_orders.py").write_text("1 / 0\n")
    sys.path.insert(0, str(Path.cwd()))
    assert check_transform("clean_orders:clean") == "clean_orders:clean"
    with pytest.raises(Refusal, match="has no function wash"):
        check_transform("clean_orders:wash")
    with pytest.raises(Refusal, match="cannot be imported: division by zero"):
        check_transform("broken_orders:clean")


# Commands on Spark ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    "proof",
    [
        Proof(
            records=9, once=8, dropped=0, missing=1, repeated=0, unknown=0,
            examples=("missing, for example: partition 0 of orders, offset 4",),
        ),
        KeyProof(
            records=9, current=7, deleted=0, missing=1, stale=0, repeated=0, unknown=0,
            compacted=0, older=0,
            letters=Proof(
                records=0, once=0, dropped=0, missing=0, repeated=0, unknown=0, examples=()
            ),
            examples=("missing, for example: partition 0 of orders, offset 4",),
        ),
    ],
)  # fmt: skip
def test_verify_that_misses_an_offset_says_so_on_stderr(
    file: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    proof: Proof | KeyProof,
) -> None:
    monkeypatch.setattr("kwire_pipeline.cli.preflight", lambda *_, **__: None)
    monkeypatch.setattr("kwire_pipeline.commands.tables.open_session", lambda _: Session())
    monkeypatch.setattr("kwire_pipeline.commands.verify.prove", lambda *_: proof)
    assert cli.main(["verify", file]) == 1
    output = capsys.readouterr()
    assert "9 committed records in the topics" in output.out
    assert output.err == (
        "kwire-pipeline: shop.orders does not agree with the topics: missing, for example: "
        "partition 0 of orders, offset 4\n"
    )


def test_a_command_on_spark_is_refused_before_spark_starts(
    file: str, monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    bootstrap = [Flag("source.bootstrap", f"127.0.0.1:{closed_port}")]
    with pytest.raises(Refusal, match="JAVA_HOME is /no/java"):
        preflight(load(file, bootstrap, {}), {"JAVA_HOME": "/no/java"})
    with pytest.raises(Failure, match="connection refused"):
        preflight(load(file, bootstrap, {}), {"JAVA_HOME": "/no/java", "PYSPARK_GATEWAY_PORT": "1"})


def creates_it(*_: object, **__: object) -> int:
    """Take the place of what needs Spark in the command `plan`."""
    print("creates it")
    return 0


def test_plan_shows_what_is_in_force(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kwire_pipeline.cli.preflight", lambda *_, **__: None)
    monkeypatch.setattr("kwire_pipeline.commands.plan.on_tables", creates_it)
    monkeypatch.setenv("WHERE", "opensesame")
    flags = ["--checkpoint", "${WHERE}", "--source.options", "kafka.client.rack=${WHERE}"]
    assert cli.main(["plan", file, *flags, "--spark.conf", "spark.x.token=t0ken"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "source.topics: [orders]" in lines
    assert "source.options: {kafka.client.rack: ***}" in lines
    assert "spark.conf: {spark.x.token: ***}" in lines
    assert "limits.max_offsets_per_trigger: 1000000 (default)" in lines
    assert "package: org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0" in lines
    assert lines[-1] == "creates it"


def test_errors_of_spark_are_one_sentence() -> None:
    def fail_later() -> int:
        raise PySparkException("\n\nJob aborted\n\tat org.apache.spark")

    def lose_jvm() -> int:
        raise ConnectionRefusedError(111, "Connection refused")

    def read_without_connector() -> int:
        raise Py4JError(
            "An error occurred while calling o45.exists.\n"
            ": org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "
            '"s3x"\n'
            "\tat org.apache.hadoop.fs.FileSystem.getFileSystemClass(FileSystem.java:3585)\n"
        )

    def read_full_disk() -> int:
        raise Py4JError(
            "An error occurred while calling o45.append.\n: java.io.IOException: No space left on "
            "device\n\tat java.base\nCaused by: java.io.FileNotFoundException\n"
        )

    def load_catalog() -> int:
        raise PySparkException("Cannot load\n\nCaused by: java.lang.ClassNotFoundException: a.B\n")

    def call_class() -> int:
        raise TypeError("'JavaPackage' object is not callable")

    with pytest.raises(Refusal) as refusal:
        run_on_spark(read_without_connector)
    assert str(refusal.value) == (
        "Spark failed: org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for "
        'scheme "s3x": add the package that has it to spark.packages, or its jar to spark.jars'
    )
    with pytest.raises(Failure, match=r"^Spark failed: java.io.IOException: No space left on dev"):
        run_on_spark(read_full_disk)
    with pytest.raises(
        Refusal, match=r"^Spark failed: Cannot load \(java.*NotFoundException: a.B\)"
    ):
        run_on_spark(load_catalog)
    with pytest.raises(Refusal, match="Spark lacks a class of the pipeline: add the package"):
        run_on_spark(call_class)
    with pytest.raises(Failure, match="Spark's JVM ended during the command: run it again"):
        run_on_spark(lose_jvm)
    with pytest.raises(Failure, match=r"^Spark failed: Job aborted$"):
        run_on_spark(fail_later)


LOST = """\
[STREAM_FAILED] Query [id = 1] terminated with exception: \
[KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED] Some data may have been lost because they are gone;
either the data was aged out by Kafka or the topic may have been deleted
set the source option failOnDataLoss to false.
Reason: Partition orders-0 offset was changed from 20 to 3. SQLSTATE: 22000
"""
LOST_IN_TASK = """\
An error occurred while calling o7.collectToPython.
: org.apache.spark.sql.kafka010.KafkaIllegalStateException: Some data may have been lost because \
they are not available in Kafka any more;
set the source option failOnDataLoss to false.
Reason: Could not read records in offset [10, 20) for topic partition orders-0
with consumer group spark-kafka-source-executor.
"""
NO_RIGHT = "org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized: [orders]"
NO_FILE = "Job aborted\n\tat a.B\nCaused by: java.nio.file.AccessDeniedException: /lake/a.parquet"

NO_MODULE = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "worker.py", line 1, in main
ModuleNotFoundError: No module named 'rates'
"""


def caused_by(cause: Exception) -> Exception:
    """Return an exception of a query, in which pyspark keeps the one of its cause."""
    error = PySparkException("Query terminated")
    error._cause = cause  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            PySparkException(LOST),
            r"^records were removed .* from 20 to 3.*--source.fail_on_data_loss",
        ),
        (
            Py4JError(LOST_IN_TASK),
            r"^records were removed .* \[10, 20\) .*--source.fail_on_data_loss",
        ),
        (
            Py4JError(NO_RIGHT),
            "deny .*TopicAuthorization.*: correct source.security",
        ),
        (PySparkException(NO_FILE), "Spark failed: Job aborted .*/lake/a.parquet"),
        (AnalysisException("no column"), "Spark failed: no column: a rerun would fail too"),
        (
            caused_by(AnalysisException("a")),
            "Spark failed: Query terminated: a rerun would fail too",
        ),
        (PythonException(NO_MODULE), r"\(ModuleNotFoundError: No module named 'rates'\): a rerun"),
    ],
)
def test_error_of_spark_that_a_rerun_meets_again_is_a_refusal(error: Exception, words: str) -> None:
    """A scheduler that repeats what ends with 1 would repeat it forever."""

    def fail() -> int:
        raise error

    with pytest.raises(Refusal, match=words):
        run_on_spark(fail)


UNRESOLVED = """\
\tHost repos.spark-packages.org not found. url=https://repos.spark-packages.org/org/nope.pom
\t\t:: org.nope#nope_2.13;1.0: not found
Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: org.nope#nope_2.13]
\tat org.apache.spark.util.MavenUtils$.resolveMavenCoordinates(MavenUtils.scala:540)
"""
NO_MAVEN = """\
\tHost repo1.maven.org not found. url=https://repo1.maven.org/maven2/org/nope/nope_2.13-1.0.pom
"""
BAD_MEMORY = """\
WARNING: Using incubator modules: jdk.incubator.vector
Exception in thread "main" org.apache.spark.SparkException: Executor memory must be positive
\tat org.apache.spark.deploy.SparkSubmitArguments.error(SparkSubmitArguments.scala:628)
"""
BAD_HEAP = """\
Invalid maximum heap size: -Xmxabc
Error: Could not create the Java Virtual Machine.
Error: A fatal exception has occurred. Program will exit.
"""


NO_HOST = """\
WARNING: Using incubator modules: jdk.incubator.vector
Exception in thread "main" java.lang.ExceptionInInitializerError
\tat org.apache.spark.deploy.SparkSubmitArguments.<init>(SparkSubmitArguments.scala:100)
Caused by: java.net.UnknownHostException: box: box: Name or service not known
\tat java.base/java.net.InetAddress.getLocalHost(InetAddress.java:1671)
\t... 10 more
Caused by: java.net.UnknownHostException: box: Name or service not known
\t... 17 more
"""


@pytest.mark.parametrize(
    ("output", "kind", "reason"),
    [
        (
            NO_HOST,
            Failure,
            "Spark ended while it started: java.net.UnknownHostException: box: Name or service not "
            "known",
        ),
        (
            UNRESOLVED,
            Refusal,
            "Maven has no org.nope:nope_2.13:1.0: correct spark.packages, or set spark.jars",
        ),
        (
            NO_MAVEN + UNRESOLVED,
            Failure,
            "Maven Central cannot be reached for org.nope:nope_2.13:1.0: run `kwire-pipeline jars "
            "DIR FILE` where it can and set spark.jars to DIR",
        ),
        (
            BAD_MEMORY,
            Refusal,
            "Spark does not start: Executor memory must be positive: correct the section spark",
        ),
        (
            BAD_HEAP,
            Refusal,
            "Java does not start: Invalid maximum heap size: -Xmxabc: correct spark.conf",
        ),
        (
            BAD_MEMORY.replace("apache.spark.SparkException", "x.UnknownHostException"),
            Failure,
            "Spark ended while it started: org.x.UnknownHostException: Executor memory must be "
            "positive",
        ),
        ("killed\n\n", Failure, "Spark ended while it started: killed"),
        ("", Failure, "Spark ended while it started: it gave no reason"),
    ],
)
def test_reason_why_spark_does_not_start_is_the_last_line(
    output: str, kind: type[Exception], reason: str
) -> None:
    problem = launch_problem(output.splitlines())
    assert type(problem) is kind
    assert str(problem) == reason


class IllegalArgumentException(PySparkException):
    """The stand-in of pyspark's exception, which needs a JVM."""


class WithCause(PySparkException):
    """The stand-in of pyspark's exceptions of Java."""

    _cause: PySparkException | None = None


def test_value_that_spark_refuses_once_it_runs_is_a_refusal() -> None:
    context = Py4JError(
        "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
        ": java.lang.IllegalArgumentException: spark.ui.port should be int, but was x\n\tat org.x"
    )
    problem = start_problem(context)
    assert type(problem) is Refusal
    assert str(problem) == (
        "Spark does not start: spark.ui.port should be int, but was x: correct the section spark"
    )
    session = WithCause("Error while instantiating 'org.apache.spark.SessionStateBuilder':")
    assert type(start_problem(session)) is Failure
    session._cause = IllegalArgumentException("spark.sql.x should be int, but was y")
    assert "spark.sql.x should be int, but was y" in str(start_problem(session))
    host = Py4JError(
        "An error occurred\n: java.lang.IllegalArgumentException: java.net.UnknownHostException: hn"
    )
    assert type(start_problem(host)) is Failure


def test_an_exception_of_the_transform_is_one_sentence_with_its_place(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("wrong_orders.py").write_text("def clean(frame):\n    return frame['no such']\n")
    monkeypatch.syspath_prepend(str(Path.cwd()))

    def command() -> int:
        function = importlib.import_module("wrong_orders").clean
        return int(function({}))

    with pytest.raises(Refusal, match=r"^transform: wrong_orders.py:2 raises KeyError: 'no such'$"):
        run_on_spark(command, "wrong_orders:clean")
    with pytest.raises(KeyError):
        run_on_spark(command, "other:clean")


def test_output_whose_reader_has_ended_is_one_line(file: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "kwire_pipeline", "check", file, "--progress", "x"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    assert ended.stderr == "kwire-pipeline: standard output was closed by its reader\n"
    assert ended.returncode == 1


# init and secrets ----------------------------------------------------------------------------
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_output_that_was_closed_before_the_start_is_no_defect(closed: str) -> None:
    command = f"{sys.executable} -m kwire_pipeline check none.yaml {closed}"
    ended = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr


def test_init_writes_a_file_that_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--source.topics", "a", "--source.topics", "b", "--trigger", "30 seconds"]
    flags += ["--source.security.protocol", "SASL_SSL", "--source.security.username", "me"]
    flags += ["--value.schema", "id BIGINT", "--source.security.password", "${P}"]
    assert cli.main(["init", "web-shop.yaml", *flags]) == 0
    text = Path("web-shop.yaml").read_text()
    assert "# The pipeline's name" in text
    pipeline = load("web-shop.yaml", [], {"P": "opensesame"})
    assert pipeline.source.security.password == "opensesame"
    assert pipeline.source.topics == ("a", "b")
    assert pipeline.table.name == "lake.web_shop"
    assert not pipeline.trigger.available_now


def test_init_with_a_topic_of_dead_letters_names_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--value.schema", "id BIGINT", "--dead_letters.topic", "orders-dead"]
    assert cli.main(["init", "orders.yaml", *flags]) == 0
    letters = load("orders.yaml", [], {}).dead_letters
    assert (letters.table, letters.topic) == (None, "orders-dead")


def test_no_command_shows_a_secret(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIDDEN", "opensesame")
    flags = ["--spark.jars", "${HIDDEN}", "--source.bootstrap", "127.0.0.1:1"]
    cli.main(["check", file, *flags])
    cli.main(["jars", "d", file, "--transform", "${HIDDEN}"])
    output = capsys.readouterr()
    assert "spark.jars: ***" in output.out
    assert "opensesame" not in output.out + output.err


def test_command_on_spark_shows_no_secret(
    file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kwire_pipeline.cli.preflight", lambda *_, **__: None)
    monkeypatch.setattr("kwire_pipeline.commands.tables.open_session", lambda _: Session())
    monkeypatch.setattr(
        "kwire_pipeline.commands.maintain.maintain_tables",
        lambda *_, **__: ["s3://lake?token=opensesame: 2 files became 1"],
    )
    assert cli.main(["maintain", file, "--spark.conf", "spark.x.token=opensesame"]) == 0
    assert capsys.readouterr().out == "s3://lake?token=***: 2 files became 1\n"

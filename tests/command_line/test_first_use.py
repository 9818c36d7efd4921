"""Errors of `kwire serve` for a set-up that cannot work: one line, what failed, why, what to do.

Exit code 1 is for usage and configuration, 2 for data and addresses that cannot be had.  None of
these starts may change anything on the disk.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kwire.configs.files import read_properties
from tests.support.command_line.process import CLUSTER_ID, KWIRE, config_file, free_port, run, serve

pytestmark = pytest.mark.slow

AS_OTHER_USER = """
import encodings.idna, encodings.utf_8_sig, fcntl, os, resource, sys, tempfile
import kwire.cli, kwire.configs.checks, kwire.configs.properties, kwire.node.server
import kwire.storage_format.releases
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
kwire.cli.main(sys.argv[1:])
"""
"""A start without root's rights; its modules may be where only root can read."""


def refusal(folder: Path, *arguments: str, code: int = 2) -> str:
    """Return the one line with which a start fails."""
    return only_line(run(folder, "serve", *arguments), code)


def only_line(result: "subprocess.CompletedProcess[str]", code: int) -> str:
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("kwire: ")
    assert result.returncode == code, line
    return line


def refusal_for_other_user(
    folder: Path, *arguments: str, command: str = "serve", code: int = 2
) -> str:
    """Return the one line with which a start fails for a user who owns no files here."""
    for parent in (folder, *folder.parents):
        if parent.owner() == "root" and os.geteuid() == 0 and str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    result = subprocess.run(
        [sys.executable, "-c", AS_OTHER_USER, command, *arguments],
        cwd=folder,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return only_line(result, code)


def data(path: Path) -> tuple[str, ...]:
    return ("--port", "0", "--override", f"log.dirs={path}")


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


@pytest.fixture(scope="module")
def stopped_node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run and stop a node; return its directory, which tests copy."""
    folder = tmp_path_factory.mktemp("stopped")
    with serve(folder, *data(folder / "data"), "--cluster-id", CLUSTER_ID) as node:
        assert node.stop() == 0
    return folder / "data"


# Directories


@pytest.mark.parametrize("below", ["", "/data"])
def test_file_in_place_of_the_data_directory_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "taken").write_text("a file")
    line = refusal(tmp_path, *data(Path(f"{tmp_path}/taken{below}")))
    assert f"{tmp_path}/taken{below}: Not a directory; a file has the name" in line


def test_unwritable_directory_is_refused_with_the_reason(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir(mode=0o555)
    line = refusal_for_other_user(tmp_path, *data(place / "data"))
    assert f"{place}/data: Permission denied; run kwire as the owner of the directory" in line
    assert files(place) == {}


def test_data_directory_below_a_closed_directory_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir(mode=0o700)
    line = refusal_for_other_user(tmp_path, *data(place / "data"))
    assert f"cannot use the data directory {place}/data: Permission denied; run kwire as" in line


def test_data_directory_with_too_long_a_name_is_refused(tmp_path: Path) -> None:
    line = refusal(tmp_path, *data(tmp_path / ("x" * 300)))
    assert line.endswith("x: File name too long")


@pytest.mark.parametrize("name", ["meta.properties", "__cluster_metadata-0"])
def test_file_of_another_user_in_the_data_directory_is_named(
    tmp_path: Path, stopped_node: Path, name: str
) -> None:
    place = tmp_path / "data"
    shutil.copytree(stopped_node, place)
    place.chmod(0o777)
    (place / name).chmod(0o000)
    line = refusal_for_other_user(tmp_path, *data(place))
    assert f"cannot use the data directory {place}: {name}: Permission denied; run kwire" in line


def test_empty_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir(mode=0o555)
    assert "Permission denied; run kwire as" in refusal_for_other_user(tmp_path, *data(place))
    assert files(place) == {}


def test_data_of_another_user_is_refused(tmp_path: Path, stopped_node: Path) -> None:
    place = tmp_path / "data"
    shutil.copytree(stopped_node, place)
    place.chmod(0o555)
    before = files(place)
    line = refusal_for_other_user(tmp_path, *data(place))
    assert f"cannot use the data directory {place}: Permission denied; run kwire as" in line
    assert files(place) == before
    place.chmod(0o000)
    assert f"{place}: Permission denied" in refusal_for_other_user(tmp_path, *data(place))
    place.chmod(0o755)


def test_ephemeral_without_a_temporary_directory_is_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))
    monkeypatch.setattr("tempfile.tempdir", None)
    program = "import tempfile; tempfile._candidate_tempdir_list = lambda: ['/absent']; "
    program += "import kwire.cli; kwire.cli.main(['serve', '--ephemeral'])"
    result = subprocess.run(
        [sys.executable, "-c", program], text=True, capture_output=True, timeout=60, check=False
    )
    assert "cannot create a temporary directory" in only_line(result, 2)


def test_directory_under_two_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").symlink_to(tmp_path / "one")
    both = f"log.dirs={tmp_path}/one,{tmp_path}/other"
    line = refusal(tmp_path, "--port", "0", "--override", both, code=1)
    assert f"{tmp_path}/other and {tmp_path}/one are the same" in line
    assert files(tmp_path / "one") == {}


def test_directory_in_use_is_refused(tmp_path: Path) -> None:
    with serve(tmp_path, "--port", "0"):
        line = refusal(tmp_path, "--port", "0")
    assert "kwire-data/.lock is locked by another broker; stop it" in line


def test_port_in_use_leaves_no_files(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refusal(tmp_path, "--port", str(port), "--override", f"log.dirs={tmp_path}/data")
    assert f"cannot listen on PLAINTEXT://127.0.0.1:{port}: Address already in use; stop" in line
    assert "--port" in line
    assert files(tmp_path) == {}


def test_second_start_on_a_port_is_refused(tmp_path: Path) -> None:
    port = str(free_port())
    with serve(tmp_path, "--port", port) as node:
        before = (tmp_path / "kwire-data" / "meta.properties").read_bytes()
        assert "Address already in use" in refusal(tmp_path, "--port", port)
        assert (tmp_path / "kwire-data" / "meta.properties").read_bytes() == before
        assert node.stop() == 0


# Addresses


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("no.such.host.invalid", "name this host or an address of it in listeners"),
        ("192.0.2.1", "no interface of this machine has the address"),
    ],
)
def test_address_of_another_machine_is_refused(tmp_path: Path, host: str, reason: str) -> None:
    listeners = f"listeners=PLAINTEXT://{host}:0,CONTROLLER://127.0.0.1:0"
    line = refusal(
        tmp_path, "--override", listeners, "--override", "advertised.listeners=PLAINTEXT://a:1"
    )
    assert f"cannot listen on PLAINTEXT://{host}:0: " in line
    assert reason in line
    assert files(tmp_path) == {}


def test_privileged_port_is_refused_with_the_remedy(tmp_path: Path) -> None:
    lowest = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    if lowest.exists() and int(lowest.read_text()) <= 81:
        pytest.skip("every user may listen on port 81 here")
    line = refusal_for_other_user(tmp_path, "--port", "81", "--ephemeral")
    assert "127.0.0.1:81: Permission denied; ports below 1024 need a privilege" in line


# What lies in the directory


def damage_version(place: Path) -> None:
    (place / "meta.properties").write_text("version=7\nnode.id=1\n")


def damage_text(place: Path) -> None:
    (place / "meta.properties").write_bytes(b"\xff\xfe\x00garbage")


def damage_number(place: Path) -> None:
    text = (place / "meta.properties").read_text()
    (place / "meta.properties").write_text(text.replace("node.id=1", "node.id=xyz"))


def damage_uuid(place: Path) -> None:
    path = place / "meta.properties"
    path.write_text(re.sub("directory.id=.*", "directory.id=me", path.read_text()))


def lose_version(place: Path) -> None:
    (place / "meta.properties").write_text("node.id=1\n")


def damage_empty(place: Path) -> None:
    (place / "meta.properties").write_bytes(b"")


def damage_directory(place: Path) -> None:
    (place / "meta.properties").unlink()
    (place / "meta.properties").mkdir()


def damage_identity(place: Path) -> None:
    path = place / "meta.properties"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if "directory.id" not in line))


def lose_meta(place: Path) -> None:
    (place / "meta.properties").unlink()


def lose_metadata_log(place: Path) -> None:
    shutil.rmtree(place / "__cluster_metadata-0")


def damage_bootstrap(place: Path) -> None:
    (place / "bootstrap.checkpoint").write_bytes(b"no snapshot")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damage_version, "meta.properties has version 7"),
        (damage_text, "meta.properties is damaged: it is not text; restore a copy, or"),
        (damage_empty, "meta.properties is empty; restore a copy, or move the directory away"),
        (damage_number, "meta.properties is damaged: node.id=xyz is not a number; restore"),
        (damage_uuid, "meta.properties is damaged: directory.id=me is not a uuid; restore"),
        (lose_version, "meta.properties lacks version; restore"),
        (damage_directory, "Is a directory; a directory has the name of a file"),
        (damage_identity, "meta.properties has no directory.id"),
        (lose_meta, "holds data but lost its meta.properties; restore a copy"),
        (lose_metadata_log, "lost its metadata log __cluster_metadata-0"),
        (damage_bootstrap, "bootstrap.checkpoint is damaged"),
    ],
    ids=lambda value: getattr(value, "__name__", None) or "",
)
def test_damaged_directory_is_refused_and_not_changed(
    tmp_path: Path, stopped_node: Path, damage: Callable[[Path], None], reason: str
) -> None:
    place = tmp_path / "data"
    shutil.copytree(stopped_node, place)
    damage(place)
    before = files(place)
    line = refusal(tmp_path, *data(place))
    assert reason in line
    assert str(place) in line
    assert files(place) == before


def test_empty_directory_of_the_metadata_log_is_refused(tmp_path: Path, stopped_node: Path) -> None:
    """Its disk may not be mounted; the other directory shows that the node is not new."""
    place, metadata = tmp_path / "data", tmp_path / "metadata"
    shutil.copytree(stopped_node, place)
    before = files(place)
    line = refusal(tmp_path, *data(place), "--override", f"metadata.log.dir={metadata}")
    assert (
        f"{metadata}, the directory of the metadata log, is not formatted, but {place} is" in line
    )
    assert "mount its disk" in line
    assert files(place) == before


def test_directory_of_another_node_or_cluster_is_refused(
    tmp_path: Path, stopped_node: Path
) -> None:
    place = tmp_path / "data"
    shutil.copytree(stopped_node, place)
    before = files(place)
    line = refusal(tmp_path, *data(place), "--override", "node.id=7")
    assert f"{place} belongs to node.id 1, not 7; set node.id" in line
    other = "A" * 21 + "Q"
    line = refusal(tmp_path, *data(place), "--cluster-id", other)
    assert f"{place} belongs to cluster {CLUSTER_ID}, not {other}" in line
    assert files(place) == before


def test_format_of_an_unreadable_directory_is_exit_2(tmp_path: Path, stopped_node: Path) -> None:
    place = tmp_path / "data"
    config = str(config_file(tmp_path, log_dirs=str(place)))
    command = ("format", "-t", CLUSTER_ID, "-g", "-c", config)
    shutil.copytree(stopped_node, place)
    damage_text(place)
    assert "it is not text; restore a copy" in only_line(run(tmp_path, *command), 2)
    shutil.rmtree(place)
    place.write_text("a file")
    line = only_line(run(tmp_path, *command), 2)
    assert f"{place}: Not a directory; a file has the name" in line
    place.unlink()
    line = refusal_for_other_user(tmp_path, *command[1:], command="format")
    assert f"{place}: Permission denied; run kwire as" in line
    assert not place.exists()


def test_format_refuses_directories_of_another_cluster(tmp_path: Path, stopped_node: Path) -> None:
    """Kafka's tool: "Invalid cluster.id in: ... Expected ..., but read ..."."""
    place, new = tmp_path / "data", tmp_path / "new"
    shutil.copytree(stopped_node, place)
    config = str(config_file(tmp_path, log_dirs=f"{place},{new}", node_id="1"))
    config_text = Path(config).read_text().replace("=5@", "=1@")
    Path(config).write_text(config_text)
    other = "A" * 21 + "Q"
    line = only_line(run(tmp_path, "format", "-t", other, "-g", "-c", config), 2)
    assert f"{place} belongs to cluster {CLUSTER_ID}, not {other}; use that cluster's" in line
    assert not new.exists()
    Path(config).write_text(config_text.replace("=1@", "=7@").replace("node.id=1", "node.id=7"))
    line = only_line(run(tmp_path, "format", "-t", CLUSTER_ID, "-g", "-c", config), 2)
    assert f"{place} belongs to node.id 1, not 7" in line
    assert not new.exists()
    Path(config).write_text(config_text)
    done = run(tmp_path, "format", "-t", CLUSTER_ID, "-g", "-c", config)
    assert (done.returncode, done.stdout.startswith(f"formatted {new} for node 1")) == (0, True)


# Settings


def test_cluster_id_that_is_no_uuid_is_refused(tmp_path: Path) -> None:
    line = refusal(tmp_path, "--port", "0", "--cluster-id", "mine", code=1)
    assert "'mine' is not a uuid in 22 characters of base64; `kwire random-uuid`" in line
    assert files(tmp_path) == {}


def test_metrics_host_without_a_port_is_refused(tmp_path: Path) -> None:
    line = refusal(tmp_path, "--port", "0", "--metrics-host", "127.0.0.1", code=1)
    assert "no effect without --metrics-port; give both" in line
    assert files(tmp_path) == {}


@pytest.mark.parametrize("kind", ["absent", "directory", "latin-1"])
def test_unreadable_configuration_is_refused_with_the_reason(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "server.properties"
    if kind == "directory":
        path.mkdir()
    elif kind == "latin-1":
        path.write_bytes("# für Müller\n".encode("latin-1"))
    line = refusal(tmp_path, "--config", str(path), code=1)
    assert f"cannot read the configuration {path}: " in line
    assert "; give a file to --config" in line or "; save it as UTF-8" in line


def test_byte_order_mark_of_an_editor_is_no_part_of_the_first_setting(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("node.id=1\nprocess.roles=broker\n", encoding="utf-8-sig")
    assert read_properties(path) == {"node.id": "1", "process.roles": "broker"}


def test_configuration_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("node.id=1\n")
    path.chmod(0)
    line = refusal_for_other_user(tmp_path, "--config", str(path), code=1)
    assert f"cannot read the configuration {path}: Permission denied" in line


def test_error_in_the_configuration_file_names_the_file(tmp_path: Path) -> None:
    path = config_file(tmp_path, node_id="-1")
    line = refusal(tmp_path, "--config", str(path), code=1)
    assert f"{path}: Invalid value -1 for configuration node.id" in line


def test_error_in_an_override_names_the_override(tmp_path: Path) -> None:
    """The file is not named: its value is valid or missing."""
    path = config_file(tmp_path, num_partitions="3")
    for override, reason in (
        ("num.partitions=many", "--override num.partitions: Invalid value many for"),
        (" num.partitions = ", "--override num.partitions: num.partitions is empty; give it"),
        ("sasl.enabled.mechanisms=PLAIN", "--override sasl.enabled.mechanisms: sasl.enabled"),
        ("controller.quorum.voters=9@a:1", "--override controller.quorum.voters: controller"),
        ("log.dirs=a,a/", "--override log.dirs: log.dirs names one directory twice: "),
        ("log.dirs=", "--override log.dirs: log.dirs is empty; name at least one directory"),
    ):
        for more in ((), ("--config", str(path))):
            line = refusal(tmp_path, "--override", override, *more, code=1)
            assert line.startswith(f"kwire: {reason}")
    line = refusal(tmp_path, "--config", str(path), "--override", "log.dir=x,,y", code=1)
    assert line.startswith("kwire: --override log.dir: log.dir has an empty value")
    path = config_file(tmp_path, log_dirs=",")
    line = refusal(tmp_path, "--config", str(path), "--override", "log.dir=x", code=1)
    assert line.startswith(f"kwire: {path}: log.dirs has an empty value")


def test_secret_on_the_command_line_is_a_warning(tmp_path: Path) -> None:
    """A list of processes shows it."""
    settings = ("ssl.keystore.password=hidden", "ssl.key.password=hidden", "num.partitions=2")
    overrides = [f"--override={text}" for text in settings]
    with serve(tmp_path, "--port", "0", "--ephemeral", *overrides) as node:
        log = node.errors.read_text()
    (warning,) = [line for line in log.splitlines() if "secrets on the command line" in line]
    assert "names=ssl.key.password,ssl.keystore.password; every user" in warning
    assert "hidden" not in log
    path = config_file(tmp_path, ssl_keystore_password="hidden")
    with serve(tmp_path, "--config", str(path)) as node:
        assert "secrets on the command line" not in node.errors.read_text()


def test_malformed_listeners_are_quoted_in_the_error(tmp_path: Path) -> None:
    """--port changes only listeners that are well-formed."""
    for text in ("localhost:9092", "PLAINTEXT://localhost", "PLAINTEXT:/a:1"):
        line = refusal(tmp_path, "--port", "0", "--override", f"listeners={text}", code=1)
        assert f"listeners: unable to parse {text!r} to a broker endpoint; write NAME:" in line


def test_dump_of_a_missing_file_is_exit_2(tmp_path: Path) -> None:
    for name, why in (("absent.log", "No such file or directory"), (".", "Is a directory")):
        line = only_line(run(tmp_path, "dump-log", name), 2)
        assert line.startswith(f"kwire: cannot read {name}: {why}; name files of a data")


def test_directory_named_twice_is_used_once(tmp_path: Path) -> None:
    both = f"log.dirs={tmp_path}/data,{tmp_path}/data"
    with serve(tmp_path, "--port", "0", "--override", both) as node:
        assert node.stop() == 0
    assert f"duplicate values removed name=log.dirs value={tmp_path}/data\n" in (
        node.errors.read_text()
    )


def test_unknown_setting_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    wrong = ("log.retension.hours=1", "utterly.different=1")
    overrides = [part for text in wrong for part in ("--override", text)]
    with serve(tmp_path, "--port", "0", "--ephemeral", *overrides) as node:
        warnings = node.errors.read_text()
    assert (
        "unknown setting ignored name=log.retension.hours nearest=log.retention.hours" in warnings
    )
    assert "unknown setting ignored name=utterly.different\n" in warnings


# Surroundings


def test_deleted_current_directory_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    program = f"import os; os.chdir({str(tmp_path / 'gone')!r}); os.rmdir(os.getcwd()); "
    program += "import kwire.cli; kwire.cli.main(['serve', '--port', '0'])"
    result = subprocess.run(
        [sys.executable, "-c", program], text=True, capture_output=True, timeout=60, check=False
    )
    assert "the current directory was deleted" in only_line(result, 2)


def test_too_few_descriptors_are_refused_with_the_remedy(tmp_path: Path) -> None:
    command = "import resource, kwire.cli, kwire.node.server, kwire.configs.checks; "
    command += "resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9)); "
    command += f"kwire.cli.main(['serve', '--port', '0', '--override', 'log.dirs={tmp_path}/d'])"
    result = subprocess.run(
        [sys.executable, "-c", command], text=True, capture_output=True, timeout=60, check=False
    )
    assert result.returncode == 2
    assert "Too many open files; raise the limit of open files" in result.stderr.splitlines()[-1]


def test_node_serves_when_stdout_is_closed(tmp_path: Path) -> None:
    """It also stops in order."""
    reader, writer = os.pipe()
    os.close(reader)
    errors = tmp_path / "errors"
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [KWIRE, "serve", "--port", "0"], cwd=tmp_path, stdout=writer, stderr=stderr
        )
    os.close(writer)
    try:
        until_line(errors, "ready, but stdout is closed")
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in errors.read_text()


def until_line(path: Path, text: str) -> None:
    deadline = time.monotonic() + 30
    while text not in path.read_text():
        assert time.monotonic() < deadline, path.read_text()
        time.sleep(0.05)


def test_dump_ends_when_its_reader_closes_the_pipe(tmp_path: Path, stopped_node: Path) -> None:
    (log,) = (stopped_node / "__cluster_metadata-0").glob("*.log")
    files = " ".join([str(log)] * 200)
    result = subprocess.run(
        ["/bin/sh", "-c", f"{KWIRE} dump-log --records {files} | head -n 1"],
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr == ""


def test_log_dir_of_the_command_line_replaces_the_default_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    line = refusal(tmp_path, "--port", "0", "--override", f"log.dir={tmp_path}/file")
    assert line.startswith(f"kwire: cannot use the data directory {tmp_path}/file: ")
    assert not (tmp_path / "kwire-data").exists()

"""`kwire users` and `kwire acls` against a protected broker in this process."""

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kwire import cli
from kwire.security.scram import BY_NAME, Decoys
from kwire.testing import Broker

pytestmark = pytest.mark.slow


class Commands:
    """Runs commands with the admin's client file, and returns what they print."""

    def __init__(self, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.config = config
        self._capsys = capsys

    def ok(self, *arguments: str) -> str:
        cli.main([*arguments, "--config", str(self.config)])
        return self._capsys.readouterr().out

    def error(self, *arguments: str, config: Path | None = None) -> str:
        with pytest.raises(SystemExit) as caught:
            cli.main([*arguments, "--config", str(config or self.config)])
        assert caught.value.code in (1, 2)
        return self._capsys.readouterr().err


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    data = tmp_path_factory.mktemp("admin") / "data"
    with Broker(data=data, secure=True):
        yield data.with_name("data-secure") / "client.properties"


@pytest.fixture
def commands(config: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(config, capsys)


def test_user_is_added_listed_and_removed(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text("secret\nmore\n")
    added = commands.ok("users", "add", "alice", "--password-file", str(tmp_path / "password"))
    assert added.split()[-3:] == ["alice", "SCRAM-SHA-512", "4096"]
    own = tmp_path / "alice.properties"
    admin = commands.config.read_text()
    start, _, _ = admin.partition("sasl.jaas.config=")
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    authority = commands.config.with_name("ca.pem")
    own.write_text(
        f'{start}sasl.jaas.config={module} required username="alice" password="secret";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={authority}\n"
    )
    text = commands.error("users", "list", config=own)
    assert "cannot list users: CLUSTER_AUTHORIZATION_FAILED" in text  # So alice could log in.
    monkeypatch.setattr(sys, "stdin", io.StringIO("other\n"))
    commands.ok("users", "add", "alice", "--password-file", "-", "--mechanism", "SCRAM-SHA-256")
    listing = json.loads(commands.ok("users", "list", "--json"))
    mechanisms = [user["mechanism"] for user in listing if user["name"] == "alice"]
    assert mechanisms == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    commands.ok("users", "remove", "alice", "--mechanism", "SCRAM-SHA-256")
    commands.ok("users", "remove", "alice")
    assert "there is no user alice" in commands.error("users", "remove", "alice")
    # The broker hangs up after its refusal, and either may be noticed first: the refusal counts.
    for _ in range(6):
        assert "login refused" in commands.error("users", "list", config=own)


def test_iterations_do_not_tell_which_users_exist(commands: Commands, tmp_path: Path) -> None:
    """A server tells everybody the iterations of a user, also of one that does not exist."""
    (tmp_path / "password").write_text("secret\n")
    commands.ok("users", "add", "carol", "--password-file", str(tmp_path / "password"))
    listing = json.loads(commands.ok("users", "list", "--json"))
    assert {"admin", "carol", "kwire-node"} <= {user["name"] for user in listing}
    decoy = Decoys(b"key").credential(BY_NAME["SCRAM-SHA-512"], "nobody")
    assert {user["iterations"] for user in listing} == {decoy.iterations}


def test_acls_are_added_listed_and_removed(commands: Commands) -> None:
    commands.ok("acls", "add", "User:bob", "read", "Describe", "--topic", "orders", "--prefix")
    commands.ok("acls", "add", "User:bob", "All", "--cluster", "--deny", "--host", "192.0.2.1")
    rows = json.loads(commands.ok("acls", "list", "User:bob", "--json"))
    assert [(row["permission"], row["operation"], row["resource"], row["name"], row["pattern"])
            for row in rows] == [
        ("allow", "Describe", "Topic", "orders", "prefixed"),
        ("allow", "Read", "Topic", "orders", "prefixed"),
        ("deny", "All", "Cluster", "kafka-cluster", "literal"),
    ]  # fmt: skip
    assert commands.ok("acls", "list", "User:bob", "--topic", "orders") == "(none)\n"  # literal
    removed = commands.ok("acls", "remove", "User:bob", "Read")
    assert removed.splitlines()[1].split() == [
        *("User:bob", "allow", "Read", "Topic", "orders", "prefixed", "*")
    ]
    commands.ok("acls", "remove", "User:bob")
    assert commands.ok("acls", "list", "User:bob", "--json") == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("acls", "remove"), "this would remove every ACL; add --all"),
        (("acls", "remove", "User:nobody"), "no ACL matches; `kwire acls list` shows those"),
        (("users", "remove", "nobody"), "there is no user nobody"),
        (("acls", "add", "User:bob", "Read"), "name one operation or more, and a resource"),
        (("acls", "add", "bob", "Read", "--topic", "t"), "write User:bob"),
        (("acls", "list", "Fly"), "Fly is not an operation; choose from All, Read"),
        (
            ("acls", "add", "User:bob", "Write", "--group", "g"),
            "Write is not an operation on a Group; choose from All, Read, Delete, Describe",
        ),
        (("acls", "list", "--prefix"), "--prefix needs the name"),
        (("users", "add", "bob", "--password-file", "/no/file"), "cannot read /no/file: No such"),
        (("users", "add", "bob", "--password-file", "/dev/null"), "the password is empty"),
    ],
)
def test_wrong_use_is_explained(commands: Commands, arguments: list[str], message: str) -> None:
    assert message in commands.error(*arguments)


def test_password_is_never_an_argument() -> None:
    """The list of processes shows arguments to everybody on the machine."""
    for option in ("--password", "--pass"):
        command = [sys.executable, "-m", "kwire", "users", "add", "bob", option, "secret"]
        done = subprocess.run(command, capture_output=True, text=True, input="", check=False)
        assert done.returncode == 1
        assert "secret" not in done.stdout


def test_without_a_terminal_the_password_has_to_come_from_a_file(commands: Commands) -> None:
    message = "there is no terminal to ask for the password; give --password-file FILE"
    assert message in commands.error("users", "add", "bob")


def test_terminal_that_ends_at_the_password_is_one_clear_error(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def end(prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("getpass.getpass", end)
    message = "kwire: no password was typed; nothing has changed"
    assert message in commands.error("users", "add", "bob")


def test_cluster_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["users", "list", "--bootstrap-server", "127.0.0.1:1"])
    error = capsys.readouterr().err
    assert "cannot use 127.0.0.1:1: all attempts to connect to 127.0.0.1:1 failed" in error
    assert error.count("\n") == 1


def test_reason_that_all_servers_share_is_given_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Broker(secure=True) as broker:
        server = broker.bootstrap_servers
        (tmp_path / "none.properties").write_text(
            f"bootstrap.servers={server},{server}\nsecurity.protocol=SSL\n"
        )
        with pytest.raises(SystemExit):
            cli.main(["users", "list", "--config", str(tmp_path / "none.properties")])
    error = capsys.readouterr().err
    assert error.startswith(f"kwire: cannot use {server}, {server}: ")
    assert error.count("certificate verify failed") == 1


def test_client_without_settings_learns_that_the_listener_may_be_protected(
    commands: Commands, tmp_path: Path
) -> None:
    (server,) = [
        line
        for line in commands.config.read_text().splitlines()
        if line.startswith("bootstrap.servers=")
    ]
    (tmp_path / "bare.properties").write_text(server)
    error = commands.error("users", "list", config=tmp_path / "bare.properties")
    assert "as by a listener that requires TLS or a login; check the addresses" in error


def test_untrusted_broker_is_refused(commands: Commands, tmp_path: Path) -> None:
    """The password is not sent: the handshake comes first."""
    text = commands.config.read_text()
    without_tls = [line for line in text.splitlines() if not line.startswith("ssl.")]
    untrusted = tmp_path / "untrusted.properties"
    untrusted.write_text("\n".join(without_tls))
    assert "certificate verify failed" in commands.error("users", "list", config=untrusted)

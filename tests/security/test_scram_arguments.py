"""The users that `kwire format --add-scram` names."""

from base64 import b64encode
from pathlib import Path

import pytest

from kwire.security.scram import BY_NAME, make_credential, salt_password
from kwire.security.scram_arguments import parse_credential
from kwire.storage_format.releases import BadLevelError
from kwire.storage_format.scram_users import scram_records

SALT = b"salt"
RELEASE = {"metadata.version": 29}
ALICE = "SCRAM-SHA-256=[name=alice,password=secret of alice,salt=c2FsdA==]"
BOB = "SCRAM-SHA-512=[name=bob,password=@secret,salt=c2FsdA==]"


@pytest.mark.parametrize("name", list(BY_NAME))
@pytest.mark.parametrize(
    ("values", "user", "password", "iterations"),
    [
        ("name=alice,password=secret", "alice", "secret", 4096),
        ('name="alice",password="a=b",iterations=8192', "alice", "a=b", 8192),
    ],
)
def test_password_becomes_a_credential(
    name: str, values: str, user: str, password: str, iterations: int
) -> None:
    record = parse_credential(f"{name}=[{values}]", SALT)
    mechanism = BY_NAME[name]
    salted = salt_password(mechanism, password, SALT, iterations)
    expected = make_credential(mechanism, salted, SALT, iterations)
    assert (record.name, record.mechanism) == (user, mechanism.number)
    assert (record.salt, record.stored_key, record.server_key, record.iterations) == expected


def test_salted_password_needs_no_password() -> None:
    text = "SCRAM-SHA-256=[name=a,salt=c2FsdA==,saltedpassword=%s]"
    salted = salt_password(BY_NAME["SCRAM-SHA-256"], "secret", SALT, 4096)
    record = parse_credential(text % b64encode(salted).decode(), b"another")
    assert record == parse_credential("SCRAM-SHA-256=[name=a,password=secret]", SALT)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SCRAM-SHA-999=[name=a,password=secret]",
        "SCRAM-SHA-256",
        "SCRAM-SHA-256=name=a,password=secret",
        "SCRAM-SHA-256=[name=a,password=secret",
        "SCRAM-SHA-256=[password=secret]",
        "SCRAM-SHA-256=[name=a]",
        "SCRAM-SHA-256=[name=a,saltedpassword=secret]",
        "SCRAM-SHA-256=[name=a,salt=!,password=secret]",
        "SCRAM-SHA-256=[name=a,password=secret,iterations=4095]",
        "SCRAM-SHA-256=[name=a,password=secret,iterations=16385]",
        "SCRAM-SHA-256=[name=a,password=secret,iterations=x]",
        "SCRAM-SHA-256=[name=a,secret]",
        "SCRAM-SHA-256=[name=a,password=x,other=secret]",
    ],
)
def test_malformed_credential_is_rejected_without_showing_a_secret(text: str) -> None:
    with pytest.raises(ValueError, match=r"[a-z]") as caught:
        parse_credential(text, SALT)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_file_has_a_user_in_each_line(tmp_path: Path) -> None:
    """The list of processes shows no argument with a password."""
    path = tmp_path / "users, and=more"
    path.write_text(f"{ALICE}\n\n{BOB}\n")
    assert scram_records([f"@{path}"], RELEASE) == scram_records([ALICE, BOB], RELEASE)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot read .*: No such file"),
        (b"", "is empty; write one credential per line"),
        (b"\xff", "cannot read .*: it is not UTF-8"),
        (b"SCRAM-SHA-256=[password=secret]", "the user's name is missing"),
        (b"secret", "^--add-scram: write SCRAM-SHA-256="),
    ],
)
def test_unusable_file_is_rejected_without_showing_a_secret(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "users"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadLevelError, match=reason) as caught:
        scram_records([f"@{path}"], RELEASE)
    assert "secret" not in str(caught.value)

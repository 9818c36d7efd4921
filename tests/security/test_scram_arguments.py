"""The users that `kwire format --add-scram` names."""

from base64 import b64encode

import pytest

from kwire.security.scram import BY_NAME, make_credential, salt_password
from kwire.security.scram_arguments import parse_credential

SALT = b"salt"


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

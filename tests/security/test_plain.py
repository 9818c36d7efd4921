"""The mechanism PLAIN."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwire.security import plain
from kwire.security.exchange import AuthenticationFailed
from kwire.security.plain import PlainServer, digest

PASSWORDS = {"alice": digest("secret"), "": digest("x"), "nobody": digest("")}
WRONG = "Authentication failed: Invalid username or password"


def server() -> PlainServer:
    return PlainServer(PASSWORDS)


def refusal(token: bytes) -> str | None:
    exchange = server()
    with pytest.raises(AuthenticationFailed) as caught:
        exchange.answer(token)
    assert exchange.user is None
    return caught.value.text


@pytest.mark.parametrize("token", [b"\0alice\0secret", b"alice\0alice\0secret"])
def test_right_password(token: bytes) -> None:
    exchange = server()
    assert exchange.answer(token) == b""
    assert exchange.user == "alice"


@pytest.mark.parametrize(
    "token",
    [
        b"\0alice\0secre",
        b"\0alice\0secret ",
        b"\0Alice\0secret",
        b"\0eve\0secret",
        b"\0alice\0\xff",
        b"eve\0alice\0wrong",
    ],
)
def test_wrong_log_ins_are_told_the_same(token: bytes) -> None:
    """Invariant 105: nobody learns which users exist."""
    assert refusal(token) == WRONG


def test_empty_names_and_passwords_never_log_in() -> None:
    assert refusal(b"\0\0x") == "Authentication failed: username not specified"
    assert refusal(b"\0nobody\0") == "Authentication failed: password not specified"


def test_user_cannot_act_as_another() -> None:
    text = refusal(b"bob\0alice\0secret")
    assert text is not None
    assert "authorization id that is different" in text


def test_user_that_does_not_exist_costs_the_same_comparison(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Invariant 105: each login compares two digests of equal length in constant time."""
    compared: list[tuple[int, int]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return False

    monkeypatch.setattr(plain, "compare_digest", compare)
    for token in (b"\0alice\0" + bytes([65]) * 500, b"\0eve\0secret", b"\0alice\0secret"):
        refusal(token)
    assert compared == [(32, 32)] * 3


@given(st.binary())
def test_no_other_token_logs_in(token: bytes) -> None:
    exchange = server()
    try:
        exchange.answer(token)
    except AuthenticationFailed:
        assert exchange.user is None
    else:
        assert token.endswith(b"\0alice\0secret")

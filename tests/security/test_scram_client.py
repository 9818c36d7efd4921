"""The client's side of SCRAM, against the server's side and the example of the standard."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwire.security.exchange import AuthenticationFailed
from kwire.security.scram import BY_NAME, Decoys, ScramServer, make_credential, salt_password
from kwire.security.scram_client import Challenge, ScramClient

SHA_256 = BY_NAME["SCRAM-SHA-256"]
SALT = b"a salt"
SALTED = salt_password(SHA_256, "secret", SALT, 4096)
USERS = {"a,=b": make_credential(SHA_256, SALTED, SALT, 4096)}


def server() -> ScramServer:
    return ScramServer(SHA_256, USERS.get, Decoys(b"key"), "servernonce")


def test_example_of_the_standard() -> None:
    """RFC 7677, section 3."""
    client = ScramClient(SHA_256, "user", "rOprNGfwEbeRWgbNEkqO")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    challenge = client.challenge(b"r=" + nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert challenge.iterations == 4096
    salted = salt_password(SHA_256, "pencil", *challenge)
    proof = b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert client.final(salted) == b"c=biws,r=" + nonce + b",p=" + proof
    client.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_client_and_server_prove_the_password_to_each_other() -> None:
    client, peer = ScramClient(SHA_256, "a,=b", "nonce"), server()
    challenge = client.challenge(peer.answer(client.first()))
    assert challenge == Challenge(SALT, 4096)
    client.check(peer.answer(client.final(SALTED)))
    assert peer.user == "a,=b"


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"r=nonceserver,s=YQ==",
        b"r=nonce,s=YQ==,i=4096",
        b"r=other,s=YQ==,i=4096",
        b"r=nonceserver,s=!,i=4096",
        b"r=nonceserver,s=YQ==,i=4095",
        b"r=nonceserver,s=YQ==,i=1000001",
        b"r=nonceserver,s=YQ==,i=9999999999",
        b"r=nonceserver,s=YQ==,i=x",
        b"m=x,r=nonceserver,s=YQ==,i=4096",
        b"\xff",
    ],
)
def test_challenge_that_is_malformed_or_too_costly_fails(challenge: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        ScramClient(SHA_256, "a", "nonce").challenge(challenge)


def test_server_without_the_credential_is_not_believed() -> None:
    """Invariant 105: a node does not talk to an impostor."""
    client, peer = ScramClient(SHA_256, "a,=b", "nonce"), server()
    client.challenge(peer.answer(client.first()))
    client.final(SALTED)
    for final in (b"", b"v=", b"v=AAAA", b"e=other-error", b"\xff"):
        with pytest.raises(AuthenticationFailed):
            client.check(final)


@given(st.binary(max_size=80))
def test_any_challenge_is_used_or_fails(data: bytes) -> None:
    try:
        challenge = ScramClient(SHA_256, "a", "n").challenge(b"r=n" + data)
    except AuthenticationFailed:
        return
    assert challenge.iterations >= 4096

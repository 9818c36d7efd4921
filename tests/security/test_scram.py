"""SCRAM: the server's side, against a client written from the RFC alone."""

from base64 import b64encode
from hmac import digest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwire.security.exchange import AuthenticationFailed
from kwire.security.scram import (
    BY_NAME,
    Credential,
    Decoys,
    ScramMechanism,
    ScramServer,
    TokenCredential,
    encode_name,
    make_credential,
    salt_password,
    secret_text,
)
from tests.support.security.scram_client import Client

SHA_256, SHA_512 = BY_NAME["SCRAM-SHA-256"], BY_NAME["SCRAM-SHA-512"]
SALT = b"a salt"


def credential(mechanism: ScramMechanism, password: str, iterations: int = 4096) -> Credential:
    salted = salt_password(mechanism, password, SALT, iterations)
    return make_credential(mechanism, salted, SALT, iterations)


def server(
    mechanism: ScramMechanism = SHA_256, users: dict[str, Credential] | None = None
) -> ScramServer:
    by_name = {"alice": credential(mechanism, "secret")} if users is None else users
    return ScramServer(mechanism, by_name.get, Decoys(b"key"), "servernonce")


def client(mechanism: ScramMechanism = SHA_256, user: str = "alice") -> Client:
    return Client(mechanism.hash_name, user, "secret")


def refusal(exchange: ScramServer, *tokens: bytes) -> AuthenticationFailed:
    *before, last = tokens
    for token in before:
        exchange.answer(token)
    with pytest.raises(AuthenticationFailed) as caught:
        exchange.answer(last)
    assert exchange.user is None
    return caught.value


def test_example_of_the_standard() -> None:
    """RFC 7677, section 3."""
    salt = bytes.fromhex("5b6d99689d12358eeca04b141236fa81")
    salted = salt_password(SHA_256, "pencil", salt, 4096)
    users = {"user": make_credential(SHA_256, salted, salt, 4096)}
    nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    exchange = ScramServer(SHA_256, users.get, Decoys(b"key"), nonce)
    first = exchange.answer(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = exchange.answer(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert exchange.user == "user"


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512], ids=lambda m: m.name)
@pytest.mark.parametrize("user", ["alice", "a,b=c", "=2C", "zoë"])
def test_right_password_proves_both_sides(mechanism: ScramMechanism, user: str) -> None:
    exchange = server(mechanism, {user: credential(mechanism, "secret", 5000)})
    peer = client(mechanism, encode_name(user))
    peer.extensions = ",other=true"
    answer = exchange.answer(peer.final(exchange.answer(peer.first())))
    assert peer.accepts(answer)
    assert exchange.user == user


def test_name_of_a_delegation_token_is_its_id() -> None:
    """KIP-48: the bearer is its owner, and no user of that name is asked for."""
    token = TokenCredential(credential(SHA_256, "secret"), "carol", 5_000)
    users = {"alice": credential(SHA_256, "other")}
    for extension, is_token in ((",tokenauth=true", True), (",tokenauth=false", False)):
        exchange = ScramServer(SHA_256, users.get, Decoys(b"key"), "n", {"alice": token}.get)
        peer = client()
        peer.extensions = extension
        final = peer.final(exchange.answer(peer.first()))
        if not is_token:
            with pytest.raises(AuthenticationFailed):
                exchange.answer(final)
            continue
        assert peer.accepts(exchange.answer(final))
        assert (exchange.user, exchange.expires_ms, exchange.by_token) == ("carol", 5_000, True)
    without = ScramServer(SHA_256, users.get, Decoys(b"key"), "n")
    peer = client()
    peer.extensions, peer.password = ",tokenauth=true", "other"
    refusal(without, peer.first(), peer.final(server(users={}).answer(peer.first())))


def test_user_may_name_itself_as_authorization_id() -> None:
    exchange, peer = server(), client()
    peer.header = "n,a=alice,"
    assert peer.accepts(exchange.answer(peer.final(exchange.answer(peer.first()))))


def test_wrong_password_and_unknown_user_look_the_same() -> None:
    """Invariant 105: both get a challenge, with one salt for a name, and fail at the proof."""
    peer, eve = client(), client(user="eve")
    peer.password = "wrong"
    exchange, other = server(), server()
    challenges = [exchange.answer(peer.first()), other.answer(eve.first())]
    again = server().answer(eve.first())
    assert again == challenges[1]
    fields = [dict(p.split("=", 1) for p in c.decode().split(",")) for c in challenges]
    assert fields[0].keys() == fields[1].keys()
    assert fields[0]["i"] == fields[1]["i"]
    failures = [
        refusal(exchange, peer.final(challenges[0])),
        refusal(other, eve.final(challenges[1])),
    ]
    assert [str(failure) for failure in failures] == ["Invalid client credentials"] * 2
    assert [failure.text for failure in failures] == [None, None]


def test_unknown_user_costs_as_many_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 105."""
    counts: list[int] = []
    users = {"alice": credential(SHA_256, "other")}

    def count(key: bytes, data: bytes, name: str) -> bytes:
        counts[-1] += 1
        return digest(key, data, name)

    monkeypatch.setattr("kwire.security.scram.digest", count)
    for user in ("alice", "eve"):
        counts.append(0)
        exchange, peer = server(users=users), client(user=user)
        refusal(exchange, peer.first(), peer.final(server(users=users).answer(peer.first())))
    assert counts[0] == counts[1]


def test_salts_of_unknown_users_have_the_form_of_others() -> None:
    """Kafka's tools make salts of 130 random bits: most have 25 digits, many 26."""
    decoy = Decoys(b"key").credential(SHA_512, "eve")
    assert decoy.salt.isalnum()
    salts = [Decoys(b"key").credential(SHA_512, f"user-{n}").salt for n in range(200)]
    assert {25, 26} <= {len(salt) for salt in salts} <= {23, 24, 25, 26}
    assert 90 < sum(len(salt) == 25 for salt in salts) < 150
    assert secret_text(bytes(17)) == "0"
    assert int(secret_text(b"\xff" * 17), 36) == (1 << 130) - 1
    assert decoy != Decoys(b"other").credential(SHA_512, "eve")
    assert decoy.salt != Decoys(b"key").credential(SHA_512, "eva").salt


def test_credential_with_too_few_iterations_never_logs_in() -> None:
    peer = client()
    exchange = server(users={"alice": credential(SHA_256, "secret", 4095)})
    challenge = exchange.answer(peer.first())
    assert b"i=4096" in challenge
    refusal(exchange, peer.final(challenge))


def test_other_user_cannot_be_acted_for() -> None:
    for user in ("alice", "eve"):
        peer = client(user=user)
        peer.header = "n,a=bob,"
        failure = refusal(server(), peer.first())
        assert failure.text is not None
        assert "authorization id" in failure.text


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=alice",
        b"n,,r=x,n=alice",
        b"n,,n=alice,r=",
        b"n,,n=,r=x",
        b"n,,n=a=b,r=x",
        b"n,,n=a=2c,r=x",
        b"n,,n=alice,r=a b",
        b"n,,n=alice,r=\xc3\xbc",
        b"y,,n=alice,r=x",
        b"p=tls-unique,,n=alice,r=x",
        b"n,,m=x,n=alice,r=x",
        b"n,alice,n=alice,r=x",
        b"n,,n=\xff,r=x",
        b"n,,n=a\0b,r=x",
    ],
)
def test_malformed_first_message_fails(first: bytes) -> None:
    assert refusal(server(), first).text is None


def test_final_message_must_fit_the_first() -> None:
    """Invariant 105: another nonce, channel binding or proof fails, and so does a repetition."""
    peer = client()
    challenge = server().answer(peer.first())
    right = peer.final(challenge)
    for wrong in (
        b"",
        right.rpartition(b",p=")[0],
        right[:-4],
        right + b"=",
        right.replace(b"c=biws", b"c=eSws"),
        right.replace(b"c=biws", b"c=!"),
        right.replace(b"servernonce", b"servernoncf"),
        right.replace(b",r=", b",q="),
        b"c=biws,r=servernonce,p=" + right.rpartition(b",p=")[2],
        right.rpartition(b",p=")[0] + b",p=" + b64encode(bytes(32)),
        right.rpartition(b",p=")[0] + b",p=" + b64encode(bytes(31)),
        b"\xff",
    ):
        exchange = server()
        exchange.answer(peer.first())
        refusal(exchange, wrong)
    other = ScramServer(SHA_256, {"alice": credential(SHA_256, "secret")}.get, Decoys(b""), "new")
    refusal(other, peer.first(), right)
    for nonce in ("servernonce", peer.nonce, peer.nonce + "servernonceX"):
        refusal(server(), peer.first(), peer.final(challenge, nonce))
    peer.channel = "n,a=alice,"
    refusal(server(), peer.first(), peer.final(challenge))


TOKENS = st.one_of(
    st.binary(max_size=100),
    st.sampled_from([b"n,,n=alice,r=x", b"c=biws,r=xservernonce,p=" + b64encode(bytes(32))]),
    st.builds(
        lambda parts: ",".join(parts).encode(),
        st.lists(st.sampled_from(["n", "", "n=alice", "r=x", "c=biws", "p=AA==", "=", "a="])),
    ),
)
USERS = {"alice": credential(SHA_256, "secret")}


@given(st.lists(TOKENS, max_size=4))
def test_no_tokens_without_the_password_log_in(tokens: list[bytes]) -> None:
    exchange = server(users=USERS)
    for token in tokens:
        try:
            exchange.answer(token)
        except AuthenticationFailed:
            break
    assert exchange.user is None

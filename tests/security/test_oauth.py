"""Access tokens: which are accepted, and what their clients are told."""

import json
from base64 import urlsafe_b64encode
from contextlib import suppress

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import example, given
from hypothesis import strategies as st

from kwire.security.exchange import AuthenticationFailed
from kwire.security.oauth.claims import AccessToken, TokenRules, check_claims
from kwire.security.oauth.messages import (
    MESSAGE_BYTES_MAX,
    TokenRejected,
    client_message,
    parse_client_message,
)
from kwire.security.oauth.server import TokenServer
from kwire.security.oauth.signed import KeySet, UnknownKey
from kwire.security.oauth.unsecured import UnsecuredRules, check_unsecured, unsecured_token
from tests.support.security.issuer import Issuer

NOW_MS = 1_700_000_000_000
NOW_S = NOW_MS // 1000
RULES = TokenRules(audiences=("kafka", "other"), issuer="https://issuer", skew_s=30)
ISSUER = Issuer.create("RS256", "one")
KEYS = KeySet.parse(ISSUER.key_set())
CLAIMS = {
    "sub": "alice", "iat": NOW_S, "exp": NOW_S + 600, "aud": "kafka", "iss": "https://issuer",
    "scope": ["read", "write"],
}  # fmt: skip


def check(token: str, rules: TokenRules = RULES, keys: KeySet = KEYS) -> AccessToken:
    return check_claims(keys.verify(token), rules, NOW_MS)


def token_with(**claims: object) -> str:
    """Return a token with these claims, or without those that are None."""
    merged = {**CLAIMS, **claims}
    return ISSUER.sign({name: value for name, value in merged.items() if value is not None})


def test_signed_token_logs_its_user_in_until_it_expires() -> None:
    assert check(token_with()) == AccessToken("alice", (NOW_S + 600) * 1000)
    assert check(token_with(aud=["x", "other"], scope="read")) == check(token_with())
    rules = RULES._replace(user_claim="email", audiences=(), issuer=None)
    assert check(token_with(email="a@b", aud=None, iss=None), rules).user == "a@b"


@pytest.mark.parametrize("algorithm", ["RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA"])
def test_key_of_each_algorithm_verifies(algorithm: str) -> None:
    issuer = Issuer.create(algorithm, "k")
    keys = KeySet.parse(issuer.key_set())
    assert check(issuer.sign(CLAIMS), keys=keys).user == "alice"


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": NOW_S - 30}, "expired"),
        ({"exp": None}, "lacks the claim exp"),
        ({"exp": "soon"}, "exp is not a number"),
        ({"exp": True}, "exp is not a number"),
        ({"exp": 1e300}, "exp is not a time"),
        ({"exp": -1}, "exp is not a time"),
        ({"iat": None}, "lacks the claim iat"),
        ({"iat": NOW_S + 601}, "expires before"),
        ({"nbf": NOW_S + 31}, "not valid for another"),
        ({"aud": "them"}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"aud": {"kafka": 1}}, "another audience"),
        ({"iss": "https://issuer.evil"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"sub": None}, "lacks a user name"),
        ({"sub": " "}, "lacks a user name"),
        ({"sub": 7}, "lacks a user name"),
        ({"scope": ["a", "a"]}, "scope twice"),
        ({"scope": [""]}, "invalid scope"),
    ],
)
def test_token_with_wrong_claims_is_rejected(claims: dict[str, object], reason: str) -> None:
    with pytest.raises(TokenRejected, match=reason):
        check(token_with(**claims))


def test_token_for_an_audience_is_rejected_where_none_is_expected() -> None:
    """It is for another service, as Apache Kafka 4.3.1 judges too (RFC 7519, section 4.1.3)."""
    rules = RULES._replace(audiences=())
    assert check(token_with(aud=None), rules).user == "alice"
    for audience in ("kafka", ["kafka"], []):
        with pytest.raises(TokenRejected, match="an audience, and none is expected"):
            check(token_with(aud=audience), rules)


def test_user_name_loses_only_the_blanks_that_java_trims() -> None:
    assert check(token_with(sub=" \tbob\x00\n")).user == "bob"
    assert check(token_with(sub="\u00a0bob\u2003")).user == "\u00a0bob\u2003"


@pytest.mark.parametrize("more", ['"sub": "eve"', '"x": {"a": 1, "a": 2}', '"x": NaN'])
def test_token_that_others_may_read_otherwise_is_rejected(more: str) -> None:
    """Apache Kafka 4.3.1 rejects these tokens, too."""
    claims = json.dumps(CLAIMS)
    header = json.dumps({"alg": "RS256", "kid": "one"})
    assert check(ISSUER.sign_texts(header, claims)).user == "alice"
    for texts in ((header, f"{{{more}, {claims[1:]}"), (f'{{"kid": "x", {header[1:]}', claims)):
        with pytest.raises(TokenRejected):
            check(ISSUER.sign_texts(*texts))


def test_clocks_may_differ_by_the_skew() -> None:
    assert check(token_with(exp=NOW_S - 29, iat=NOW_S - 60, nbf=NOW_S - 60)).user == "alice"
    assert check(token_with(nbf=NOW_S + 30)).user == "alice"


def test_token_without_a_signature_is_rejected_where_signed_ones_are_expected() -> None:
    """The algorithm ``none``, in each way of writing it."""
    for name in ("none", "None", "NONE", ""):
        header, claims = section({"alg": name, "kid": "one"}), section(CLAIMS)
        for token in (f"{header}.{claims}.", f"{header}.{claims}.AAAA", f"{header}.{claims}"):
            with pytest.raises(TokenRejected):
                check(token)


def test_public_key_is_not_the_secret_of_an_hmac() -> None:
    """Algorithm confusion: HS256 with the published key, in each of its forms."""
    public = ISSUER.private.public_key()
    secrets = [
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        json.loads(ISSUER.key_set())["keys"][0]["n"].encode(),
    ]
    for secret in secrets:
        for key_id in ({"kid": "one"}, {}):
            with pytest.raises(UnknownKey):
                check(hmac_token(secret, key_id))


def test_symmetric_key_in_a_key_set_verifies_nothing() -> None:
    secret = {"kty": "oct", "kid": "shared", "k": urlsafe_b64encode(b"s" * 32).decode()}
    document = json.loads(ISSUER.key_set())
    document["keys"].append(secret)
    with pytest.raises(UnknownKey):
        check(
            hmac_token(b"s" * 32, {"kid": "shared"}),
            keys=KeySet.parse(json.dumps(document).encode()),
        )


def test_token_of_another_issuer_is_rejected_under_any_key_id() -> None:
    for key_id, error in (("one", TokenRejected), ("two", UnknownKey)):
        other = Issuer.create("RS256", key_id)
        with pytest.raises(error):
            check(other.sign(CLAIMS))


def test_changed_token_is_rejected() -> None:
    header, _, signature = token_with().split(".")
    with pytest.raises(TokenRejected, match="cannot be verified"):
        check(f"{header}.{section({**CLAIMS, 'sub': 'admin'})}.{signature}")


def test_key_for_another_use_or_algorithm_is_not_used() -> None:
    (key,) = json.loads(ISSUER.key_set())["keys"]
    for change in ({"use": "enc"}, {"alg": "RS512"}, {"alg": "HS256"}, {"kty": "EC"}):
        other = {**key, "kid": "x"}
        keys = KeySet.parse(json.dumps({"keys": [{**key, **change}, other]}).encode())
        with pytest.raises(UnknownKey):
            keys.verify(token_with())


def test_weak_or_useless_key_sets_are_rejected() -> None:
    weak = Issuer.create("RS256", "weak", rsa_bits=1024).key_set()
    for document in (b"", b"[]", b'{"keys": 7}', b'{"keys": []}', b"[" * 100_000, weak):
        with pytest.raises(ValueError, match="it "):
            KeySet.parse(document)


def test_oversized_message_is_not_parsed() -> None:
    with pytest.raises(AuthenticationFailed, match="bytes"):
        parse_client_message(client_message("a" * MESSAGE_BYTES_MAX))
    header = section({"alg": "RS256", "kid": "k" * 1001})
    with pytest.raises(TokenRejected, match="key id"):
        check(f"{header}.{section(CLAIMS)}.AAAA")


def test_rejected_token_is_answered_with_an_object_and_then_an_error() -> None:
    """RFC 7628, section 3.2.3."""
    server = TokenServer(check)
    assert server.answer(client_message(token_with(exp=1))) == b'{"status":"invalid_token"}'
    assert server.user is None
    with pytest.raises(AuthenticationFailed) as caught:
        server.answer(b"\x01")
    assert caught.value.text == '{"status":"invalid_token"}'
    assert "expired" in str(caught.value)
    with pytest.raises(AuthenticationFailed):
        server.answer(client_message(token_with()))  # Each connection has one attempt.
    assert server.user is None


def test_accepted_token_logs_in_at_once() -> None:
    server = TokenServer(check)
    assert server.answer(client_message(token_with(), (("traceId", "7"),))) == b""
    assert (server.user, server.expires_ms) == ("alice", (NOW_S + 600) * 1000)


def test_authorization_id_must_be_the_users() -> None:
    for name, is_right in (("alice", True), ("bob", False)):
        message = client_message(token_with()).replace(b"n,,", f"n,a={name},".encode(), 1)
        server = TokenServer(check)
        if is_right:
            assert server.answer(message) == b""
        else:
            with pytest.raises(AuthenticationFailed) as caught:
                server.answer(message)
            assert "(bob) that is different" in str(caught.value.text)


@pytest.mark.parametrize(
    "message",
    [
        b"", b"\x01", b"n,,", b"n,,\x01", b"n,,\x01\x01", b"n,,\x01auth=Bearer a\x01",
        b"y,,\x01auth=Bearer a\x01\x01", b"n,,\x01auth=Basic a\x01\x01", b"n,,\x01auth=a\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01", b"n,,\x01host=a\x01\x01",
        b"n,b=c,\x01auth=Bearer a\x01\x01",
        b"n,,\x01auth=Bearer a\x01x\x01\x01", b"n,,\x01auth=Bearer a\x01\x01\x01",
        b"n,,\x01auth=Bearer a\x011=2\x01\x01", b"n,,\x01auth=Bearer \xff\x01\x01",
    ],
)  # fmt: skip
def test_malformed_messages_fail_without_a_text(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed, match="malformed") as caught:
        parse_client_message(message)
    assert caught.value.text is None


@given(st.binary(max_size=200) | st.text(alphabet="n,=\x01auth Bearer.ab", max_size=60))
@example("n,,\x01auth=Bearer a.b.c\x01\x01")
def test_any_message_logs_in_nobody_and_raises_nothing_else(message: bytes | str) -> None:
    data = message if isinstance(message, bytes) else message.encode()
    for checked in (check, lambda token: check_unsecured(token, UnsecuredRules(), NOW_MS)):
        server = TokenServer(checked)
        with suppress(AuthenticationFailed):
            server.answer(data)
        assert server.user is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "b64"]), JSON), JSON)
@example({"alg": "RS256", "kid": "one", "crit": ["x"]}, {})
def test_any_header_is_rejected_and_raises_nothing_else(header: object, claims: object) -> None:
    for first in (section(header), "e30", "[" * 10, section("x"), section(header)[:-1] or "x"):
        for last in ("AAAA", "A", "=", "x" * 342):
            with pytest.raises(TokenRejected):
                check(f"{first}.{section(claims)}.{last}")


@given(st.dictionaries(st.sampled_from(sorted([*CLAIMS, "nbf"])), JSON))
def test_any_claims_are_accepted_or_rejected(claims: dict[str, object]) -> None:
    try:
        access = check_claims({**CLAIMS, **claims}, RULES, NOW_MS)
    except TokenRejected:
        return
    assert isinstance(access.user, str)
    assert access.expires_ms > NOW_MS - 30_000


def test_deeply_nested_token_is_rejected() -> None:
    deep = urlsafe_b64encode(b"[" * 30_000).decode()
    with pytest.raises(TokenRejected):
        check(f"{deep}.{deep}.AAAA")
    with pytest.raises(TokenRejected):
        check_unsecured(f"{deep}.{deep}.", UnsecuredRules(), NOW_MS)


def test_unsecured_token_logs_in_where_it_is_accepted() -> None:
    options = {
        "unsecuredLoginStringClaim_sub": "alice",
        "unsecuredLoginListClaim_scope": "|read|write",
        "unsecuredLoginNumberClaim_x": "1.5",
        "unsecuredLoginLifetimeSeconds": "60",
    }
    token = unsecured_token(options, NOW_MS)
    rules = UnsecuredRules.of({"unsecuredValidatorRequiredScope": "read write"})
    assert check_unsecured(token, rules, NOW_MS) == AccessToken("alice", NOW_MS + 60_000)
    with pytest.raises(TokenRejected, match="expired"):
        check_unsecured(token, rules, NOW_MS + 60_000)
    with pytest.raises(TokenRejected, match="future"):
        check_unsecured(token, rules, NOW_MS - 1)
    for wrong in (f"{token}AAAA", token_with(), token.replace(".", "..", 1)):
        with pytest.raises(TokenRejected):
            check_unsecured(wrong, rules, NOW_MS)


def test_missing_scope_of_an_unsecured_token_is_named() -> None:
    rules = UnsecuredRules.of({"unsecuredValidatorRequiredScope": "read admin"})
    options = {"unsecuredLoginStringClaim_sub": "a", "unsecuredLoginStringClaim_scope": "read"}
    server = TokenServer(lambda token: check_unsecured(token, rules, NOW_MS))
    answer = server.answer(client_message(unsecured_token(options, NOW_MS)))
    assert answer == b'{"status":"insufficient_scope", "scope":"[read, admin]"}'


def section(value: object) -> str:
    return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def hmac_token(secret: bytes, header: dict[str, str]) -> str:
    """Return a token with an HMAC, which PyJWT signs only with what does not look like a key."""
    from hashlib import sha256
    from hmac import digest

    signing_input = f"{section({'alg': 'HS256', **header})}.{section(CLAIMS)}"
    signature = urlsafe_b64encode(digest(secret, signing_input.encode(), sha256)).decode()
    return f"{signing_input}.{signature.rstrip('=')}"

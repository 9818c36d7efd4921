"""The requests of a client before it has logged in, and when it logs in again."""

import random

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwire.codec.apis import APIS
from kwire.codec.frame import read_response, request_frame
from kwire.codec.messages.api_versions import ApiVersionsRequest
from kwire.codec.messages.metadata import MetadataRequest
from kwire.codec.messages.sasl_authenticate import SaslAuthenticateRequest
from kwire.codec.messages.sasl_handshake import SaslHandshakeRequest
from kwire.security.conversation import Conversation, Login, Mechanism, Rejected
from kwire.security.exchange import AuthenticationFailed
from kwire.security.plain import PlainServer, digest

PASSWORDS = {"alice": digest("secret"), "bob": digest("other")}
NOW_MS = 1_000_000
ALICE, BOB = b"\0alice\0secret", b"\0bob\0other"


@attrs.define
class TwoSteps:
    """A mechanism that takes two tokens."""

    user: str | None = None
    expires_ms: int | None = None
    by_token: bool = False
    count: int = 0

    def answer(self, token: bytes) -> bytes:
        self.count += 1
        if token == b"no":
            raise AuthenticationFailed("a reason for the log")
        if self.count == 2:
            self.user = "alice"
        return b"step %d" % self.count


MECHANISMS = {
    "PLAIN": Mechanism(begin=lambda: PlainServer(PASSWORDS), lifetime_ms=5000),
    "TWO": Mechanism(begin=TwoSteps),
}


def conversation(before: Login | None = None) -> Conversation:
    return Conversation(MECHANISMS, before)


def handshake(mechanism: str = "PLAIN", version: int = 1) -> memoryview:
    return frame(17, version, SaslHandshakeRequest(mechanism=mechanism))


def token(data: bytes, version: int = 2) -> memoryview:
    return frame(36, version, SaslAuthenticateRequest(auth_bytes=data))


def frame(key: int, version: int, request: object) -> memoryview:
    return memoryview(request_frame(key, version, 7, "c", request))[4:]


VERSIONS = frame(18, 3, ApiVersionsRequest(client_software_name="a", client_software_version="1"))


def response_to(talk: Conversation, sent: memoryview) -> object:
    """Return the decoded answer to a request; that of a rejected one if there is one."""
    key, version = int.from_bytes(sent[:2], "big"), int.from_bytes(sent[2:4], "big")
    try:
        parts = talk.answer(sent, NOW_MS)
    except Rejected as rejected:
        parts = rejected.answer
        if not parts:
            return None
    assert parts is not None
    correlation_id, response = read_response(key, version, b"".join(parts)[4:])
    assert correlation_id == 7
    return response


def error_of(talk: Conversation, sent: memoryview) -> int | None:
    response = response_to(talk, sent)
    return None if response is None else response.error_code  # type: ignore[attr-defined]


def test_client_logs_in_after_versions_and_handshake() -> None:
    talk = conversation()
    assert talk.answer(VERSIONS, NOW_MS) is None
    assert error_of(talk, handshake()) == 0
    assert talk.login is None
    assert error_of(talk, token(ALICE)) == 0
    assert talk.login == Login("alice", "PLAIN", 5000)


def test_client_need_not_ask_for_versions() -> None:
    talk = conversation()
    assert error_of(talk, handshake()) == 0
    assert error_of(talk, token(BOB, version=0)) == 0
    assert talk.login == Login("bob", "PLAIN", 5000)


def test_versions_are_answered_once_but_an_unknown_version_may_be_repeated() -> None:
    talk = conversation()
    unknown = memoryview(b"\0\x12\0\x63" + bytes(VERSIONS[4:]))
    assert talk.answer(unknown, NOW_MS) is None
    assert talk.answer(VERSIONS, NOW_MS) is None
    assert error_of(talk, VERSIONS) is None
    assert talk.login is None


def test_handshake_lists_the_mechanisms() -> None:
    for name, code in (("PLAIN", 0), ("SCRAM-SHA-256", 33), ("plain", 33), ("", 33)):
        response = response_to(conversation(), handshake(name))
        assert (response.error_code, response.mechanisms) == (code, ["PLAIN", "TWO"])  # type: ignore[attr-defined]


def test_tokens_of_several_steps() -> None:
    talk = conversation()
    error_of(talk, handshake("TWO"))
    for expected in (b"step 1", b"step 2"):
        assert talk.login is None
        assert response_to(talk, token(b"x")).auth_bytes == expected  # type: ignore[attr-defined]
    assert talk.login == Login("alice", "TWO", None)


def test_bare_tokens_after_the_first_version_of_the_handshake() -> None:
    talk = conversation()
    assert error_of(talk, handshake("TWO", version=0)) == 0
    assert talk.answer(memoryview(b"x"), NOW_MS) == [b"\0\0\0\x06step 1"]
    assert talk.answer(memoryview(b"y"), NOW_MS) == [b"\0\0\0\x06step 2"]
    assert talk.login is not None
    talk = conversation()
    error_of(talk, handshake(version=0))
    assert talk.answer(memoryview(ALICE), NOW_MS) == [b"\0\0\0\0"]
    talk = conversation()
    error_of(talk, handshake(version=0))
    with pytest.raises(Rejected) as caught:
        talk.answer(memoryview(b"\0alice\0wrong"), NOW_MS)
    assert caught.value.answer == []


def test_failure_without_a_text_is_told_in_general_words() -> None:
    talk = conversation()
    error_of(talk, handshake("TWO"))
    response = response_to(talk, token(b"no"))
    assert response.error_code == 58  # type: ignore[attr-defined]
    assert response.error_message == (  # type: ignore[attr-defined]
        "Authentication failed during authentication due to invalid credentials with SASL "
        "mechanism TWO"
    )


def test_no_other_request_is_answered_before_the_log_in() -> None:
    """Invariant 105: nor is it decoded."""
    for api in APIS:
        for shaken in (False, True):
            if (api.key == 18 and not shaken) or api.key == (36 if shaken else 17):
                continue
            talk = conversation()
            if shaken:
                error_of(talk, handshake())
            header = api.key.to_bytes(2, "big") + bytes(2) + b"\0\0\0\x07\xff\xff"
            garbage = memoryview(header + b"\0" + random.Random(api.key).randbytes(60))
            with pytest.raises(Rejected):
                talk.answer(garbage, NOW_MS)
            assert talk.login is None


@pytest.mark.parametrize("sent", [handshake(), VERSIONS], ids=["handshake", "versions"])
def test_handshake_and_versions_amid_tokens_are_answered_with_illegal_state(
    sent: memoryview,
) -> None:
    talk = conversation()
    error_of(talk, handshake())
    assert error_of(talk, sent) == 34


def test_session_is_renewed_by_the_same_user_with_the_same_mechanism() -> None:
    """KIP-368, invariant 105."""
    before = Login("alice", "PLAIN", 5000)
    talk = conversation(before)
    assert error_of(talk, handshake()) == 0
    assert error_of(talk, token(ALICE)) == 0
    assert talk.login == before
    talk = conversation(before)
    error_of(talk, handshake())
    response = response_to(talk, token(BOB))
    assert response.error_message == (  # type: ignore[attr-defined]
        "Cannot change principals during re-authentication from User.alice: User.bob"
    )
    assert talk.login is None
    talk = conversation(before)
    with pytest.raises(Rejected, match="TWO, but the client logged in with PLAIN"):
        talk.answer(handshake("TWO"), NOW_MS)
    with pytest.raises(Rejected):
        conversation(before).answer(VERSIONS, NOW_MS)


@attrs.define
class Expiring:
    """A mechanism whose clients show something that expires."""

    expires_ms: int | None
    user: str | None = None
    by_token: bool = False

    def answer(self, token: bytes) -> bytes:
        self.user = "alice"
        return b""


@pytest.mark.parametrize(
    ("was_by_token", "reason"),
    [(True, "from a delegation token to a password"), (False, "from a password to a delegation")],
)
def test_renewal_with_another_kind_of_secret_is_told_apart_from_another_user(
    was_by_token: bool, reason: str
) -> None:
    mechanism = Mechanism(begin=lambda: Expiring(None, by_token=not was_by_token))
    talk = Conversation({"X": mechanism}, before=Login("alice", "X", 5000, was_by_token))
    error_of(talk, handshake("X"))
    response = response_to(talk, token(b"x"))
    assert reason in (response.error_message or "")  # type: ignore[attr-defined]
    assert talk.login is None


@pytest.mark.parametrize(
    ("expires_ms", "limit_ms", "lifetime_ms"),
    [
        (NOW_MS + 700, 0, 700),
        (NOW_MS + 700, 500, 500),
        (NOW_MS + 700, 900, 700),
        (NOW_MS - 5, 0, 0),
        (None, 900, 900),
        (None, 0, None),
    ],
)
def test_session_ends_when_what_the_client_has_shown_expires(
    expires_ms: int | None, limit_ms: int, lifetime_ms: int | None
) -> None:
    """KIP-368: and at the latest when the setting says so."""
    mechanism = Mechanism(begin=lambda: Expiring(expires_ms), lifetime_ms=limit_ms)
    talk = Conversation({"X": mechanism})
    error_of(talk, handshake("X"))
    response = response_to(talk, token(b"x"))
    assert response.session_lifetime_ms == (lifetime_ms or 0)  # type: ignore[attr-defined]
    assert talk.login == Login("alice", "X", lifetime_ms)


FRAMES = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(
        [
            bytes(each)
            for each in (
                VERSIONS,
                handshake(),
                handshake("TWO", 0),
                handshake("X"),
                token(b"\0alice\0wrong"),
                token(b""),
                frame(3, 12, MetadataRequest(topics=None)),
            )
        ]
    ),
    st.builds(
        lambda key, version, rest: key.to_bytes(2, "big") + version.to_bytes(2, "big") + rest,
        st.sampled_from([17, 18, 36, 3]),
        st.integers(0, 4),
        st.binary(max_size=80),
    ),
)


@given(st.lists(FRAMES, max_size=6))
def test_no_frames_without_the_password_log_in(frames: list[bytes]) -> None:
    """Invariant 105: any frames are answered or end the connection."""
    talk = Conversation({"PLAIN": MECHANISMS["PLAIN"], "TWO": MECHANISMS["PLAIN"]})
    for data in frames:
        try:
            talk.answer(memoryview(data), NOW_MS)
        except Rejected:
            break
    assert talk.login is None

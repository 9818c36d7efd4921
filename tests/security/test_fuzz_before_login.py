"""Random bytes where no client has logged in yet: they end the connection and log nobody in."""

from random import Random
from struct import pack

import pytest

from kwire.codec.compile import decode
from kwire.codec.frame import read_header, request_frame
from kwire.codec.messages.api_versions import ApiVersionsRequest
from kwire.codec.messages.sasl_authenticate import SaslAuthenticateRequest
from kwire.codec.messages.sasl_handshake import SaslHandshakeRequest
from kwire.codec.primitives import MalformedError
from kwire.net.framing import Disconnect, Framer
from kwire.security.conversation import Conversation, Mechanism, Rejected
from kwire.security.plain import PlainServer, digest
from kwire.security.scram import BY_NAME, Decoys, ScramServer, make_credential, salt_password
from tests.support.codec.damage import damage

SHA_256 = BY_NAME["SCRAM-SHA-256"]
CREDENTIAL = make_credential(SHA_256, salt_password(SHA_256, "x", b"salt", 4096), b"salt", 4096)
MECHANISMS = {
    "PLAIN": Mechanism(begin=lambda: PlainServer({"alice": digest("secret")})),
    SHA_256.name: Mechanism(
        begin=lambda: ScramServer(SHA_256, {"alice": CREDENTIAL}.get, Decoys(b"k"), "nonce")
    ),
}
TOKENS = [
    b"\0alice\0secret",
    b"n,,n=alice,r=abc",
    b"n,a=alice,n=alice,r=abc",
    b"c=biws,r=abcnonce,p=" + b"A" * 43 + b"=",
    b"p=tls-unique,,n=alice,r=abc",
    b"",
]


def random_frame(rng: Random) -> bytes:
    """Return a request of one of the three APIs, or a bare token, possibly damaged."""
    token = damage(rng, rng.choice(TOKENS))
    mechanism = rng.choice(("PLAIN", SHA_256.name, "OTHER"))
    versions = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    frame = rng.choice(
        (
            request_frame(18, rng.randrange(5), 1, "c", versions)[4:],
            request_frame(17, rng.randrange(2), 1, "c", SaslHandshakeRequest(mechanism=mechanism))[
                4:
            ],
            request_frame(36, rng.randrange(3), 1, "c", SaslAuthenticateRequest(auth_bytes=token))[
                4:
            ],
            token,
        )
    )
    return damage(rng, frame)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_log_ins_are_rejected(seed: int) -> None:
    """Invariant 105: only the right password logs alice in, whatever else is sent."""
    rng, logged_in, rejected = Random(seed), 0, 0
    for _ in range(5000):
        conversation, sent = Conversation(MECHANISMS), []
        for _ in range(5):
            sent.append(random_frame(rng))
            try:
                conversation.answer(memoryview(sent[-1]), now_ms=0)
            except Rejected:
                rejected += 1
                break
            if conversation.login is not None:
                assert conversation.login.user == "alice"
                assert b"\0alice\0secret" in sent[-1]
                logged_in += 1
                break
    assert logged_in
    assert rejected


def test_damaged_requests_for_the_versions_are_malformed_or_read() -> None:
    """Invariant 96: the only other request that is parsed before the login."""
    rng, read, malformed = Random(1), 0, 0
    request = ApiVersionsRequest(client_software_name="a" * 20, client_software_version="1")
    for _ in range(20_000):
        version = rng.randrange(5)
        frame = memoryview(damage(rng, request_frame(18, version, 1, "c", request)[4:]))
        try:
            _, position = read_header(frame)
            decode(ApiVersionsRequest, frame[position:], version)
            read += 1
        except MalformedError:
            malformed += 1
    assert read
    assert malformed


def test_framer_survives_any_bytes() -> None:
    """Invariant 94: it never holds more than four times what has arrived."""
    rng = Random(1)
    for _ in range(3000):
        framer, arrived = Framer(16 << 10), 0
        try:
            for _ in range(20):
                data = rng.choice((rng.randbytes(9), pack(">i", rng.randrange(20)), bytes(5)))
                arrived += len(data)
                target = framer.target()
                if target is None:
                    framer.feed(data)
                else:
                    count = min(len(target), len(data))
                    target[:count] = data[:count]
                    framer.advance(count)
                while framer.take() is not None:
                    pass
                assert framer.buffer_bytes <= max(4096, 4 * arrived)
        except Disconnect:
            continue

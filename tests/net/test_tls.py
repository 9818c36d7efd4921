"""Connections with TLS, over real loopback sockets: what holds for plain connections holds here."""

import logging
import os
import random
import socket
import ssl
import subprocess
from contextlib import suppress
from functools import partial
from pathlib import Path
from struct import pack
from typing import Any

import pytest
import trio
import trio.testing

from kwire.metrics import FAILED_AUTHENTICATIONS
from kwire.net.framing import TARGET_BYTES_MAX
from kwire.net.limits import Limits
from kwire.net.tls import handshakes
from kwire.net.tls.handshakes import PATIENCE_S
from kwire.net.tls.tls_socket import MESSAGES_MAX, SENT_BYTES, TlsSocket
from kwire.testing.wire import Closed
from tests.support.net.node import Echo, Node, echo, frames_of, settle
from tests.support.net.region import File, Region
from tests.support.net.tls import HOST, certificate, client_side, connect, tls_node, trusted_pem

pytestmark = pytest.mark.usefixtures("each_way_to_wait")

VERSIONS = ["TLSv1_2", "TLSv1_3"]


async def refusal(node: Node, context: ssl.SSLContext) -> str:
    """Return why a client's handshake, or its first request, fails."""
    with pytest.raises((trio.BrokenResourceError, Closed)) as caught:
        async with await connect(node, context) as client:
            await echo(client, b"hello")
    return str(caught.value.__cause__ or caught.value)


# What plain connections do --------------------------------------------------------------------
@pytest.mark.parametrize("version", VERSIONS)
async def test_requests_of_every_size_are_answered_in_order(version: str, tmp_path: Path) -> None:
    """Invariant 103."""
    large = os.urandom(3 * TARGET_BYTES_MAX + 12345)
    bodies = [b"one", large, *(b"%d" % n for n in range(40)), large, bytes(SENT_BYTES)]
    async with (
        tls_node(tmp_path) as (node, _),
        await connect(node, client_side(version=version)) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(client.send_bytes, frames_of(*bodies))
        with trio.fail_after(20):
            for body in bodies:
                assert await client.read_frame() == body


async def test_bytes_that_arrive_one_by_one_are_put_together(tmp_path: Path) -> None:
    async with tls_node(tmp_path) as (node, _), await connect(node) as client:
        wire = frames_of(b"first", b"second")
        for index in range(len(wire)):
            await client.send_bytes(wire[index : index + 1])
        assert [await client.read_frame() for _ in range(2)] == [b"first", b"second"]


RECORD_BYTES = 16 << 10


@pytest.mark.parametrize("version", VERSIONS)
async def test_large_request_arrives_in_portions(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some clients send each record separately: waking up for each would cost twice the CPU.

    Invariant 103.
    """
    receive, calls = TlsSocket.recv_into, list[int]()

    def count_calls(sock: TlsSocket, buffer: memoryview) -> int:
        calls.append(len(buffer))
        return receive(sock, buffer)

    monkeypatch.setattr(TlsSocket, "recv_into", count_calls)
    body = os.urandom(64 * RECORD_BYTES - 4)
    async with tls_node(tmp_path) as (node, _):
        raw = Raw(client_side(version=version))
        async with await trio.open_tcp_stream(HOST, node.port) as stream:
            await raw.shake_hands(stream)
            wire = frames_of(body)
            with trio.fail_after(20):
                for start in range(0, len(wire), RECORD_BYTES):
                    raw.tls.write(wire[start : start + RECORD_BYTES])
                    encrypted = raw.to_send.read()
                    await stream.send_all(encrypted[:-1000])
                    await settle()
                    await stream.send_all(encrypted[-1000:])
                    await settle()
                assert await raw.receive(stream, len(wire)) == wire
                raw.tls.write(frames_of(b"small"))
                await stream.send_all(raw.to_send.read())
                assert await raw.receive(stream, 9) == frames_of(b"small")
            assert len(calls) < 64 / 2
            raw.tls.write(wire[: 10 * RECORD_BYTES])
            await stream.send_all(raw.to_send.read())
        with trio.fail_after(5):
            await node.wait_connection_count(0)


class Raw:
    """A client that decides itself which of its encrypted bytes are sent when."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.received, self.to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.received, self.to_send, server_hostname=HOST)

    def step(self) -> bool:
        """Continue the handshake; return True once this side is done."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    async def shake_hands(self, stream: trio.SocketStream) -> None:
        while not self.step():
            await stream.send_all(self.to_send.read())
            self.received.write(await stream.receive_some())
        await stream.send_all(self.to_send.read())

    async def receive(self, stream: trio.SocketStream, count: int) -> bytes:
        """Return this many decrypted bytes."""
        data = b""
        while len(data) < count:
            try:
                data += self.tls.read(count - len(data))
            except ssl.SSLWantReadError:
                self.received.write(await stream.receive_some())
        return data


@pytest.mark.parametrize("version", VERSIONS)
async def test_request_that_arrives_with_the_end_of_the_handshake_is_answered(
    version: str, tmp_path: Path
) -> None:
    async with tls_node(tmp_path) as (node, _):
        raw = Raw(client_side(version=version))
        stream = await trio.open_tcp_stream(HOST, node.port)
        async with stream:
            done = raw.step()
            while not done:
                await stream.send_all(raw.to_send.read())
                raw.received.write(await stream.receive_some())
                done = raw.step()
                if version == "TLSv1_2" and raw.to_send.pending and not done:
                    continue
            raw.tls.write(frames_of(b"early"))
            await stream.send_all(raw.to_send.read())
            with trio.fail_after(5):
                assert await raw.receive(stream, 9) == frames_of(b"early")


@pytest.mark.notices_hang_up
@pytest.mark.parametrize("farewell", [True, False], ids=["farewell", "cut"])
async def test_hang_up_cancels_a_waiting_answer(farewell: bool, tmp_path: Path) -> None:
    async with tls_node(tmp_path) as (node, _):
        client = await connect(node)
        await client.send_bytes(frames_of(b"wait."))
        await node.sessions[0].waiting.wait()
        stream: Any = client.stream
        if farewell:
            await stream.aclose()
        else:
            await stream.transport_stream.aclose()
        with trio.fail_after(5):
            await node.wait_connection_count(0)
        assert node.sessions[0].cancelled


async def test_hang_up_behind_a_request_lets_it_finish(tmp_path: Path) -> None:
    async with tls_node(tmp_path) as (node, _):
        client = await connect(node)
        await client.send_bytes(frames_of(b"none.", b"none.", b"two"))
        await client.stream.aclose()
        with trio.fail_after(5):
            await node.wait_connection_count(0)
        assert node.sessions[0].answered == 1


async def test_end_of_tls_without_the_end_of_the_connection_is_a_hang_up(tmp_path: Path) -> None:
    async with tls_node(tmp_path) as (node, _):
        client = await connect(node)
        stream: Any = client.stream
        await client.send_bytes(frames_of(b"one"))
        with trio.fail_after(5):
            assert await client.read_frame() == b"one"
            transport, _ = await stream.unwrap()
            await node.wait_connection_count(0)
            await transport.aclose()


async def test_slow_reader_gets_everything_and_delays_nobody(tmp_path: Path) -> None:
    """Invariant 101."""
    body = os.urandom(1 << 20)
    async with (
        tls_node(tmp_path, limits=Limits(socket_send_buffer_bytes=8192)) as (node, _),
        await connect(node, narrow=True) as slow,
        await connect(node) as quick,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(slow.send_bytes, frames_of(body[:100], body, b"bulk.", b"after"))
        await settle()
        with trio.fail_after(20):
            assert await echo(quick, b"quick") == b"quick"
            assert await slow.read_frame() == body[:100]
            assert await slow.read_frame() == body
            assert len(await slow.read_frame()) == 4000
            assert await slow.read_frame() == b"after"
            assert await echo(slow, body) == body, "no later answer pushes the end of this one"


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "on disk"])
async def test_region_of_a_file_is_sent(
    cached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "segment"
    path.write_bytes(os.urandom(1 << 20))
    with path.open("rb") as opened:
        region = Region(File(opened), 10, 700_000, lambda position, size: cached)

        def answer_now(session: Echo, frame: memoryview) -> list[Any]:
            return [pack(">i", len(region) + 3), region, b"end"]

        monkeypatch.setattr(Echo, "answer_now", answer_now)
        async with tls_node(tmp_path) as (node, _), await connect(node) as client:
            await client.send_bytes(frames_of(b"x"))
            with trio.fail_after(20):
                assert await client.read_frame() == path.read_bytes()[10:700_010] + b"end"
    assert region.closed


async def test_muted_client_is_read_only_after_its_time(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with tls_node(tmp_path) as (node, _), await connect(node) as client:
        began = trio.current_time()
        await client.send_bytes(frames_of(b"mute.", b"after"))
        assert await client.read_frame() == b"mute."
        assert trio.current_time() - began < 1
        assert await client.read_frame() == b"after"
        assert trio.current_time() - began >= 5


async def test_idle_connection_is_closed(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    limits = Limits(connections_max_idle_ms=60_000)
    async with tls_node(tmp_path, limits) as (node, _), await connect(node) as client:
        await echo(client, b"x")
        began = trio.current_time()
        assert await client.is_closed()
        assert 59 <= trio.current_time() - began <= 62


# Handshakes -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (frames_of(b"\x00\x12\x00\x03rest of a request"), "plaintext on a TLS listener"),
        (b"GET / HTTP/1.1\r\n\r\n", "plaintext on a TLS listener"),
        (b"\x16\x03\x01\x00\x05abcde", "TLS handshake failed"),
        (b"\x16\x03\x01\xff\xff" + bytes(70000), "TLS handshake failed"),
        (b"\x16", None),
    ],
    ids=["Kafka without TLS", "HTTP", "garbage", "large garbage", "too little"],
)
async def test_client_that_does_not_speak_tls_is_closed_with_one_log_line(
    data: bytes,
    expected: str | None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    autojump_clock: trio.testing.MockClock,
) -> None:
    caplog.set_level(logging.INFO, "kwire")
    async with tls_node(tmp_path) as (node, metrics):
        stream = await trio.open_tcp_stream(HOST, node.port)
        async with stream:
            with trio.fail_after(2 * PATIENCE_S):
                try:
                    await stream.send_all(data)
                    while await stream.receive_some():
                        pass
                except trio.BrokenResourceError:
                    pass
                await node.wait_connection_count(0)
        (record,) = caplog.records
        assert (expected or "no TLS handshake within 10 seconds") in record.getMessage()
        assert metrics.cell(FAILED_AUTHENTICATIONS, "A").value == 1


async def test_probe_of_the_port_is_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kwire")
    async with tls_node(tmp_path) as (node, _):
        async with await trio.open_tcp_stream(HOST, node.port):
            await settle()
        await node.wait_connection_count(0)
    assert not caplog.records


async def test_client_that_trickles_its_handshake_is_closed_in_time(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with tls_node(tmp_path) as (node, _):
        raw = Raw(client_side())
        raw.step()
        hello = raw.to_send.read()
        began = trio.current_time()
        async with await trio.open_tcp_stream(HOST, node.port) as stream:
            with suppress(trio.BrokenResourceError):
                for index in range(len(hello)):
                    await stream.send_all(hello[index : index + 1])
                    await trio.sleep(1)
        assert trio.current_time() - began <= PATIENCE_S + 3


async def test_flood_of_half_open_handshakes_locks_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 102."""
    monkeypatch.setattr(handshakes, "SILENT_MAX", 20)
    async with tls_node(tmp_path) as (node, _), await connect(node) as old:
        silent = [await trio.open_tcp_stream(HOST, node.port) for _ in range(50)]
        await settle()
        assert len(node.service.connections) == 1 + 20
        with trio.fail_after(5):
            assert await echo(old, b"old") == b"old"
            async with await connect(node) as new:
                assert await echo(new, b"new") == b"new"
        for stream in silent:
            await stream.aclose()


async def test_one_handshake_goes_on_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 10."""
    turns: list[int] = []
    turn, take_step = 0, handshakes._take_step

    def count(*arguments: Any) -> bool:
        turns.append(turn)
        return take_step(*arguments)

    monkeypatch.setattr(handshakes, "_take_step", count)
    async with tls_node(tmp_path) as (node, _):
        raw = Raw(client_side())
        raw.step()
        hello = raw.to_send.read()
        streams = [await trio.open_tcp_stream(HOST, node.port) for _ in range(30)]
        await settle()
        for stream in streams:
            os.write(stream.socket.fileno(), hello)
        while len(turns) < len(streams):
            turn += 1
            await trio.lowlevel.checkpoint()
        assert max(turns.count(number) for number in turns) <= 2, "the order within one varies"
        for stream in streams:
            await stream.aclose()


@pytest.mark.parametrize(
    ("enabled", "spoken", "refused"),
    [("TLSv1.2", "TLSv1_2", "TLSv1_3"), ("TLSv1.3", "TLSv1_3", "TLSv1_2")],
)
async def test_only_enabled_versions_are_spoken(
    enabled: str, spoken: str, refused: str, tmp_path: Path
) -> None:
    async with tls_node(tmp_path, enabled_protocols=enabled) as (node, _):
        async with await connect(node, client_side(version=spoken)) as client:
            stream: Any = client.stream
            assert stream.version() == spoken.replace("_", ".").replace("TLSv1.", "TLSv1.")
        assert "VERSION" in (await refusal(node, client_side(version=refused))).upper()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_old_versions_are_refused(tmp_path: Path) -> None:
    async with tls_node(tmp_path) as (node, _):
        context = client_side()
        context.options |= ssl.OP_NO_TLSv1_3
        context.options |= ssl.OP_NO_TLSv1_2
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.set_ciphers("ALL:@SECLEVEL=0")
        assert "VERSION" in (await refusal(node, context)).upper()


async def test_only_named_cipher_suites_are_used(tmp_path: Path) -> None:
    suite = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"
    async with tls_node(tmp_path, cipher_suites=suite) as (node, _):
        async with await connect(node) as client:
            stream: Any = client.stream
            assert stream.cipher()[:2] == ("ECDHE-ECDSA-CHACHA20-POLY1305", "TLSv1.2")
        other = client_side()
        other.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
        assert "HANDSHAKE_FAILURE" in (await refusal(node, other)).upper()


async def test_renegotiation_is_refused(tmp_path: Path) -> None:
    async with tls_node(tmp_path) as (node, _):
        command = ["openssl", "s_client", "-connect", f"{HOST}:{node.port}", "-tls1_2"]
        async with trio.open_nursery() as nursery:
            pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            process = await nursery.start(partial(trio.run_process, command, check=False, **pipes))
            output = b""
            with trio.fail_after(10):
                while b"Verify return code" not in output:
                    output += await process.stdout.receive_some()
                await process.stdin.send_all(b"R\n")
                while b"no renegotiation" not in output:
                    output += await process.stderr.receive_some()
            process.kill()


async def test_flood_of_new_keys_ends_the_connection(tmp_path: Path) -> None:
    """Invariant 102: each costs this process a multiple of what it costs the client."""
    (tmp_path / "ca.pem").write_text(trusted_pem())
    async with tls_node(tmp_path) as (node, _), trio.open_nursery() as nursery:
        target = f"{HOST}:{node.port}"
        command = ["openssl", "s_client", "-tls1_3", "-connect", target, "-CAfile"]
        pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        start = partial(
            trio.run_process, [*command, str(tmp_path / "ca.pem")], check=False, **pipes
        )
        process = await nursery.start(start)
        output, count = b"", 0
        with trio.fail_after(20):
            while b"Verify return code" not in output:
                output += await process.stdout.receive_some()
            with suppress(trio.BrokenResourceError):
                while process.poll() is None and count < 4 * MESSAGES_MAX:
                    await process.stdin.send_all(b"k\n")
                    count += 1
                    if not await process.stderr.receive_some():  # It says KEYUPDATE each time.
                        break
            assert count < 4 * MESSAGES_MAX
            await node.wait_connection_count(0)


async def test_damaged_handshakes_end_their_connections_only(tmp_path: Path) -> None:
    """Invariants 94 and 100."""
    rng = random.Random(1)
    raw = Raw(client_side())
    raw.step()
    hello = raw.to_send.read()
    async with tls_node(tmp_path) as (node, _), await connect(node) as client:
        for _ in range(150):
            damaged = bytearray(hello)
            for _ in range(rng.choice((1, 2, 20))):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            end = rng.choice((len(damaged), rng.randrange(len(damaged))))
            stream = await trio.open_tcp_stream(HOST, node.port)
            async with stream:
                with suppress(trio.BrokenResourceError):
                    await stream.send_all(bytes(damaged[:end]) + rng.randbytes(rng.randrange(40)))
                    await stream.send_eof()
        with trio.fail_after(10):
            await node.wait_connection_count(1)
            assert await echo(client, b"hello") == b"hello"
            async with await connect(node) as late:
                assert await echo(late, b"hello") == b"hello"


# Certificates of clients ----------------------------------------------------------------------
NAME = "CN=alice,OU=tests,O=kwire"


async def user_of(node: Node, context: ssl.SSLContext) -> str:
    """Return the user name that a client's requests have."""
    async with await connect(node, context) as client:
        assert await echo(client, b"x") == b"x"
    session: Echo = node.sessions[-1]
    return session.user


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("auth", ["required", "requested", "none"])
async def test_certificate_names_the_user(auth: str, version: str, tmp_path: Path) -> None:
    shown = client_side(certificate("alice", common_name="alice"), version=version)
    async with tls_node(tmp_path, client_auth=auth) as (node, _):
        assert await user_of(node, shown) == ("" if auth == "none" else NAME)
        if auth != "required":
            assert await user_of(node, client_side(version=version)) == ""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("auth", ["required", "requested"])
async def test_unusable_certificate_is_refused(
    auth: str, version: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kwire")
    foreign = client_side(certificate("mallory", by="other"), version=version)
    expired = client_side(certificate("old", valid_days=-1), version=version)
    async with tls_node(tmp_path, client_auth=auth) as (node, metrics):
        await refusal(node, foreign)
        await refusal(node, expired)
        await node.wait_connection_count(0)
        assert metrics.cell(FAILED_AUTHENTICATIONS, "A").value == 2
        assert all(not session.answered for session in node.sessions)
    first, second = (record.getMessage() for record in caplog.records)
    assert "the client's certificate is rejected: unable to get local issuer" in first
    assert "the client's certificate is rejected: certificate has expired" in second


@pytest.mark.parametrize("version", VERSIONS)
async def test_missing_certificate_is_refused_where_required(
    version: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kwire")
    async with tls_node(tmp_path, client_auth="required") as (node, _):
        await refusal(node, client_side(version=version))
        await node.wait_connection_count(0)
    (record,) = caplog.records
    assert "the client showed no certificate" in record.getMessage()


async def test_rules_make_user_names(tmp_path: Path) -> None:
    rules = "RULE:^CN=(a.*?),.*$/$1/U"
    async with tls_node(tmp_path, client_auth="required", principal_mapping_rules=rules) as (
        node,
        _,
    ):
        alice = client_side(certificate("alice", common_name="alice"))
        assert await user_of(node, alice) == "ALICE"
        bob = client_side(certificate("bob", common_name="bob"))
        await refusal(node, bob)


async def test_client_that_rejects_the_certificate_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kwire")
    async with tls_node(tmp_path) as (node, _):

        def shake_hands() -> None:
            with socket.create_connection((HOST, node.port)) as sock:
                client_side(trust="other").wrap_socket(sock, server_hostname=HOST)

        with pytest.raises(ssl.SSLCertVerificationError):
            await trio.to_thread.run_sync(shake_hands)
        await node.wait_connection_count(0)
    (record,) = caplog.records
    assert "the client does not trust the certificate" in record.getMessage()

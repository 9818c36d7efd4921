"""Framing: any cut of the bytes gives the same frames; memory follows what arrived."""

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwire.net.framing import SPARE_BYTES, SPARES_MAX, Disconnect, Framer, Spares

MAX = 100 << 20


def frames_of(framer: Framer, data: bytes, cuts: list[int]) -> list[bytes]:
    """Feed ``data`` in pieces as a socket would, collecting what comes out."""
    found = []
    position = 0
    for end in [*cuts, len(data)]:
        while position < end:
            piece = memoryview(data)[position:end]
            target = framer.target()
            if target is None:
                framer.feed(bytes(piece))
                position = end
            else:
                count = min(len(target), len(piece))
                target[:count] = piece[:count]
                framer.filled(count)
                position += count
            while (frame := framer.take()) is not None:
                found.append(bytes(frame))
    return found


@given(st.lists(st.binary(min_size=1, max_size=20_000), max_size=6), st.data())
def test_every_cut_gives_the_same_frames(bodies: list[bytes], data: st.DataObject) -> None:
    wire = b"".join(pack(">i", len(body)) + body for body in bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    framer = Framer(MAX)
    assert frames_of(framer, wire, cuts) == bodies
    assert not framer.partial
    assert framer.held == 0


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=4))
def test_byte_by_byte(bodies: list[bytes]) -> None:
    wire = b"".join(pack(">i", len(body)) + body for body in bodies)
    assert frames_of(Framer(MAX), wire, list(range(len(wire)))) == bodies


def test_memory_follows_the_bytes_that_came() -> None:
    framer = Framer(MAX)
    framer.feed(pack(">i", 90 << 20))
    assert framer.take() is None
    assert framer.held <= 4096
    have = 0
    while have < 1 << 20:
        target = framer.target()
        assert target is not None
        assert framer.held <= max(4 * have, 4096)
        framer.filled(len(target))
        have += len(target)
        assert framer.take() is None


@pytest.mark.parametrize(
    ("prefix", "says"),
    [
        (pack(">i", -1), "frame of -1"),
        (pack(">i", 0), "frame of 0"),
        (pack(">i", MAX + 1), "frame of 104857601"),
        (pack(">i", 2147483647), "frame of 2147483647"),
        (b"GET / HTTP/1.1", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
    ],
)
def test_sizes_that_cannot_be(prefix: bytes, says: str) -> None:
    framer = Framer(MAX)
    framer.feed(prefix)
    with pytest.raises(Disconnect, match=says):
        framer.take()


def test_the_largest_frame_is_allowed() -> None:
    framer = Framer(10)
    framer.feed(pack(">i", 10) + bytes(10))
    frame = framer.take()
    assert frame is not None
    assert len(frame) == 10


def test_a_large_frame_is_received_into_its_own_buffer() -> None:
    framer = Framer(MAX)
    framer.feed(pack(">i", 100_000) + bytes(60_000))
    assert framer.take() is None
    target = framer.target()
    assert target is not None
    assert len(target) == 40_000, "never more than the frame: what follows is another one"
    framer.filled(40_000)
    frame = framer.take()
    assert frame is not None
    assert frame.nbytes == 100_000


def received(framer: Framer, body: bytes) -> memoryview:
    """A large frame, as a socket would deliver it."""
    framer.feed(pack(">i", len(body)) + body[:40_000])
    position = 40_000
    while (frame := framer.take()) is None:
        target = framer.target()
        assert target is not None
        count = min(len(target), 30_000)
        target[:count] = body[position : position + count]
        framer.filled(count)
        position += count
    return frame


def test_spares_are_used_again() -> None:
    spares = Spares()
    seen = set()
    for number in range(10):
        body = bytes([number]) * (500_000 + number)
        frame = received(Framer(MAX, spares), body)
        assert frame == body
        buffer = frame.obj
        assert isinstance(buffer, bytearray)
        seen.add(id(buffer))
        frame.release()
        spares.give(buffer)
    assert len(seen) == 1


def test_many_producers_of_large_frames_use_the_same_buffers_again() -> None:
    """Fresh memory for each frame costs more than receiving it."""
    spares = Spares()
    seen = set()
    for _ in range(3):
        framers = [Framer(MAX, spares) for _ in range(SPARES_MAX)]
        for framer in framers:
            framer.feed(pack(">i", 500_000) + bytes(20_000))
            assert framer.take() is None
            assert framer.held == SPARE_BYTES
            seen.add(id(framer._body))
        for framer in framers:
            framer.drop()
    assert len(seen) == SPARES_MAX


def test_memory_for_large_frames_is_bounded_and_given_back() -> None:
    spares = Spares()
    framers = [Framer(MAX, spares) for _ in range(SPARES_MAX + 10)]
    for framer in framers:
        framer.feed(pack(">i", 500_000) + bytes(20_000))
        assert framer.take() is None
    assert [framer.held for framer in framers[SPARES_MAX:]] == [80_000] * 10
    for framer in framers:
        framer.drop()
    assert spares.kept == SPARES_MAX
    spares.trim()
    assert spares.kept == SPARES_MAX, "all were needed since the last time"
    received(Framer(MAX, spares), bytes(500_000))
    spares.trim()
    assert spares.kept == 0


def test_spares_are_not_used_while_somebody_looks() -> None:
    spares = Spares()
    kept = []
    for number in range(3 * SPARES_MAX):
        body = bytes([number]) * 500_000
        frame = received(Framer(MAX, spares), body)
        kept.append((frame[1000:2000], number))
        buffer = frame.obj
        assert isinstance(buffer, bytearray)
        frame.release()
        spares.give(buffer)
    for part, number in kept:
        assert part == bytes([number]) * 1000


def test_an_idle_connection_holds_nothing() -> None:
    framer = Framer(1 << 20)
    framer.feed(pack(">i", 60_000) + bytes(60_000))
    frame = framer.take()
    assert frame is not None
    assert len(frame) == 60_000
    assert framer.take() is None
    assert len(framer._chunk) == 0
    assert frames_of(framer, pack(">i", 1) + b"x", []) == [b"x"]


def test_announcing_gets_no_spare() -> None:
    spares = Spares()
    framers = [Framer(MAX, spares) for _ in range(SPARES_MAX)]
    for framer in framers:
        framer.feed(pack(">i", 1 << 20) + bytes(100))
        assert framer.take() is None
        assert framer.held <= 4096


def test_a_lost_connection_gives_its_spare_back() -> None:
    spares = Spares()
    for _ in range(3 * SPARES_MAX):
        framer = Framer(MAX, spares)
        framer.feed(pack(">i", 1 << 20) + bytes(20_000))
        assert framer.take() is None
        assert framer.held == SPARE_BYTES
        framer.drop()

"""Framing: any cut of the bytes gives the same frames; memory follows the bytes that arrived."""

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwire.net.framing import (
    POOLED_BUFFER_BYTES,
    POOLED_BUFFERS_MAX,
    BufferPool,
    Disconnect,
    Framer,
)

MAX = 100 << 20


def frames_of(framer: Framer, data: bytes, cuts: list[int]) -> list[bytes]:
    """Feed ``data`` in pieces as a socket would; return the frames that come out."""
    frames = []
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
                framer.advance(count)
                position += count
            while (frame := framer.take()) is not None:
                frames.append(bytes(frame))
    return frames


@given(st.lists(st.binary(min_size=1, max_size=20_000), max_size=6), st.data())
def test_frames_do_not_depend_on_how_bytes_arrive(bodies: list[bytes], data: st.DataObject) -> None:
    wire = b"".join(pack(">i", len(body)) + body for body in bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    framer = Framer(MAX)
    assert frames_of(framer, wire, cuts) == bodies
    assert not framer.partial
    assert framer.buffer_bytes == 0


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=4))
def test_frames_arrive_byte_by_byte(bodies: list[bytes]) -> None:
    wire = b"".join(pack(">i", len(body)) + body for body in bodies)
    assert frames_of(Framer(MAX), wire, list(range(len(wire)))) == bodies


def test_buffer_grows_with_the_bytes_that_arrive() -> None:
    framer = Framer(MAX)
    framer.feed(pack(">i", 90 << 20))
    assert framer.take() is None
    assert framer.buffer_bytes <= 4096
    have = 0
    while have < 1 << 20:
        target = framer.target()
        assert target is not None
        assert framer.buffer_bytes <= max(4 * have, 4096)
        framer.advance(len(target))
        have += len(target)
        assert framer.take() is None


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [
        (pack(">i", -1), "frame of -1"),
        (pack(">i", 0), "frame of 0"),
        (pack(">i", MAX + 1), "frame of 104857601"),
        (pack(">i", 2147483647), "frame of 2147483647"),
        (b"GET / HTTP/1.1", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
    ],
)
def test_impossible_frame_size_ends_the_connection(prefix: bytes, reason: str) -> None:
    framer = Framer(MAX)
    framer.feed(prefix)
    with pytest.raises(Disconnect, match=reason):
        framer.take()


def test_frame_of_the_maximum_size_is_taken() -> None:
    framer = Framer(10)
    framer.feed(pack(">i", 10) + bytes(10))
    frame = framer.take()
    assert frame is not None
    assert len(frame) == 10


def test_large_frame_is_received_into_its_own_buffer() -> None:
    framer = Framer(MAX)
    framer.feed(pack(">i", 100_000) + bytes(60_000))
    assert framer.take() is None
    target = framer.target()
    assert target is not None
    assert len(target) == 40_000, "no byte after the frame: it belongs to the next one"
    framer.advance(40_000)
    frame = framer.take()
    assert frame is not None
    assert frame.nbytes == 100_000


def receive(framer: Framer, body: bytes) -> memoryview:
    """Return a large frame, delivered in pieces as by a socket."""
    framer.feed(pack(">i", len(body)) + body[:40_000])
    position = 40_000
    while (frame := framer.take()) is None:
        target = framer.target()
        assert target is not None
        count = min(len(target), 30_000)
        target[:count] = body[position : position + count]
        framer.advance(count)
        position += count
    return frame


def test_pooled_buffer_is_reused() -> None:
    buffers = BufferPool()
    buffer_ids = set()
    for number in range(10):
        body = bytes([number]) * (500_000 + number)
        frame = receive(Framer(MAX, buffers), body)
        assert frame == body
        buffer = frame.obj
        assert isinstance(buffer, bytearray)
        buffer_ids.add(id(buffer))
        frame.release()
        buffers.give(buffer)
    assert len(buffer_ids) == 1


def test_large_frames_of_many_connections_reuse_pooled_buffers() -> None:
    """Fresh memory for each frame costs more than receiving it."""
    buffers = BufferPool()
    buffer_ids = set()
    for _ in range(3):
        framers = [Framer(MAX, buffers) for _ in range(POOLED_BUFFERS_MAX)]
        for framer in framers:
            framer.feed(pack(">i", 500_000) + bytes(20_000))
            assert framer.take() is None
            assert framer.buffer_bytes == POOLED_BUFFER_BYTES
            buffer_ids.add(id(framer._body))
        for framer in framers:
            framer.drop()
    assert len(buffer_ids) == POOLED_BUFFERS_MAX


def test_pool_is_bounded_and_frees_unused_buffers() -> None:
    buffers = BufferPool()
    framers = [Framer(MAX, buffers) for _ in range(POOLED_BUFFERS_MAX + 10)]
    for framer in framers:
        framer.feed(pack(">i", 500_000) + bytes(20_000))
        assert framer.take() is None
    assert [framer.buffer_bytes for framer in framers[POOLED_BUFFERS_MAX:]] == [80_000] * 10
    for framer in framers:
        framer.drop()
    assert buffers.free_count == POOLED_BUFFERS_MAX
    buffers.trim()
    assert buffers.free_count == POOLED_BUFFERS_MAX, "all were in use since the last trim"
    receive(Framer(MAX, buffers), bytes(500_000))
    buffers.trim()
    assert buffers.free_count == 0


def test_pooled_buffer_is_not_reused_while_a_view_of_it_exists() -> None:
    buffers = BufferPool()
    parts = []
    for number in range(3 * POOLED_BUFFERS_MAX):
        body = bytes([number]) * 500_000
        frame = receive(Framer(MAX, buffers), body)
        parts.append((frame[1000:2000], number))
        buffer = frame.obj
        assert isinstance(buffer, bytearray)
        frame.release()
        buffers.give(buffer)
    for part, number in parts:
        assert part == bytes([number]) * 1000


def test_idle_connection_holds_no_received_bytes() -> None:
    framer = Framer(1 << 20)
    framer.feed(pack(">i", 60_000) + bytes(60_000))
    frame = framer.take()
    assert frame is not None
    assert len(frame) == 60_000
    assert framer.take() is None
    assert len(framer._chunk) == 0
    assert frames_of(framer, pack(">i", 1) + b"x", []) == [b"x"]


def test_announced_size_alone_takes_no_pooled_buffer() -> None:
    buffers = BufferPool()
    framers = [Framer(MAX, buffers) for _ in range(POOLED_BUFFERS_MAX)]
    for framer in framers:
        framer.feed(pack(">i", 1 << 20) + bytes(100))
        assert framer.take() is None
        assert framer.buffer_bytes <= 4096


def test_lost_connection_returns_its_pooled_buffer() -> None:
    buffers = BufferPool()
    for _ in range(3 * POOLED_BUFFERS_MAX):
        framer = Framer(MAX, buffers)
        framer.feed(pack(">i", 1 << 20) + bytes(20_000))
        assert framer.take() is None
        assert framer.buffer_bytes == POOLED_BUFFER_BYTES
        framer.drop()

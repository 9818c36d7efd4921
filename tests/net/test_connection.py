"""Framing: any cut of the bytes gives the same frames; memory follows what arrived."""

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwire.net.connection import Disconnect, Framer

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
                framer.feed(piece)
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
    framer.feed(memoryview(pack(">i", 90 << 20)))
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
    framer.feed(memoryview(prefix))
    with pytest.raises(Disconnect, match=says):
        framer.take()


def test_the_largest_frame_is_allowed() -> None:
    framer = Framer(10)
    framer.feed(memoryview(pack(">i", 10) + bytes(10)))
    frame = framer.take()
    assert frame is not None
    assert len(frame) == 10


def test_a_large_frame_is_received_into_its_own_buffer() -> None:
    framer = Framer(MAX)
    framer.feed(memoryview(pack(">i", 100_000) + bytes(60_000)))
    assert framer.take() is None
    target = framer.target()
    assert target is not None
    assert len(target) == 40_000, "never more than the frame: what follows is another one"
    framer.filled(40_000)
    frame = framer.take()
    assert frame is not None
    assert frame.nbytes == 100_000

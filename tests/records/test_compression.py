"""Codecs: round trips, limits of the decompressed size, and the framing that Java reads."""

import contextlib
import gzip
import random

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwire.records import compression
from kwire.records.compression import BadPayload, PayloadTooLarge

CODECS = range(5)


@given(st.binary(max_size=2000), st.integers(0, 80), st.sampled_from(CODECS))
def test_compressed_data_is_decompressed_to_the_same(data: bytes, times: int, codec: int):
    data = data * times
    packed = compression.compress(codec, data)
    assert bytes(compression.decompress(codec, packed, len(data))) == data


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_decompression_bomb_is_refused(codec: int):
    """Invariant 98: ten megabytes of one byte, one megabyte allowed."""
    bomb = compression.compress(codec, bytes(10_000_000))
    with pytest.raises(BadPayload):
        compression.decompress(codec, bomb, 1_000_000)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize("data", [b"", b"\x00", b"rubbish" * 10])
def test_random_bytes_are_refused(codec: int, data: bytes):
    try:
        compression.decompress(codec, data, 1000)
    except BadPayload:
        return
    assert data in (b"", b"\x00")


@given(st.binary(max_size=100), st.sampled_from([1, 2, 3, 4]))
def test_random_bytes_raise_only_bad_payload(data: bytes, codec: int):
    for front in (b"", compression.compress(codec, b"abc" * 50)[:20]):
        with contextlib.suppress(BadPayload):
            compression.decompress(codec, front + data, 100_000)


@given(st.binary(max_size=100))
def test_random_bytes_as_legacy_lz4_raise_only_bad_payload(data: bytes):
    for front in (b"", compression.compress(3, b"abc" * 50)[:11]):
        with contextlib.suppress(BadPayload):
            compression.decompress_legacy_lz4(front + data, 100_000)


def test_framing_is_readable_by_the_java_client():
    """snappy in xerial's framing, lz4 with independent blocks: what the Java client reads."""
    assert compression.compress(2, b"x" * 100_000)[:16].hex() == "82534e41505059000000000100000001"
    assert compression.compress(3, b"x")[:7].hex() == "04224d18604082"
    # Another library's frame reader agrees with ours.
    assert (
        bytes(cramjam.lz4.decompress(compression.compress(3, b"xyz" * 70_000))) == b"xyz" * 70_000
    )


def test_framings_of_other_libraries_are_read():
    data = b"hello" * 1000
    assert bytes(compression.decompress(2, bytes(cramjam.snappy.compress_raw(data)), 9999)) == data
    assert bytes(compression.decompress(3, bytes(cramjam.lz4.compress(data)), 9999)) == data
    two = gzip.compress(data) + gzip.compress(data)
    assert bytes(compression.decompress(1, two, 10_000)) == data * 2


@pytest.mark.parametrize("size", [0, 1, 64 << 10, (64 << 10) + 1, 300_000])
def test_lz4_frame_of_producers_has_the_end_that_the_library_sees(size: int):
    """Blocks that are compressed and blocks that are stored, another frame, and a damaged end."""
    data = random.Random(size).randbytes(size // 2).ljust(size, b"x")
    frame = compression.compress(3, data)
    assert bytes(compression.decompress(3, frame, size)) == data
    assert bytes(compression.decompress(3, frame + frame, 2 * size)) == data * 2
    for damaged in (frame + b"rubbish", frame[:-1], frame[:-5], frame[:8]):
        with pytest.raises(BadPayload):
            compression.decompress(3, damaged, 2 * size + 1)
    if size:
        with pytest.raises(PayloadTooLarge):
            compression.decompress(3, frame, size - 1)


def test_lz4_block_larger_than_its_frame_allows_is_refused():
    data = bytes((64 << 10) + 1)
    for block, flag in ((bytes(cramjam.lz4.compress_block(data, store_size=False)), 0), (data, 1)):
        word = (len(block) | flag << 31).to_bytes(4, "little")
        frame = compression.compress(3, b"")[:7] + word + block + bytes(4)
        with pytest.raises(BadPayload):
            compression.decompress(3, frame, 1 << 20)


def test_unknown_codec_is_refused():
    with pytest.raises(BadPayload):
        compression.decompress(5, b"", 10)
    with pytest.raises(BadPayload):
        compression.compress(7, b"")

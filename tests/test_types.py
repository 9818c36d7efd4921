"""Names of the whole broker as text."""

import random

from kwire.types import random_uuid, uuid_bytes, uuid_hex, uuid_text


def test_uuid_is_written_as_by_kafka_and_java() -> None:
    uuid = bytes(range(16))
    assert uuid_bytes(uuid_text(uuid)) == uuid
    assert uuid_hex(uuid) == "00010203-0405-0607-0809-0a0b0c0d0e0f"


def test_new_uuid_does_not_begin_like_an_option() -> None:
    source = random.Random(1)
    first_characters = {uuid_text(random_uuid(source.randbytes))[0] for _ in range(5000)}
    assert len(first_characters) == 63
    assert "-" not in first_characters


def test_new_uuid_is_not_reserved() -> None:
    drawn = [(99).to_bytes(16, "big"), bytes(16), b"\xfb" + bytes(15), (100).to_bytes(16, "big")]
    assert random_uuid(lambda size: drawn.pop(0)) == (100).to_bytes(16, "big")

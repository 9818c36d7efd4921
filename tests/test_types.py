"""Names of the whole broker as text."""

from kwire.types import uuid_bytes, uuid_hex, uuid_text


def test_a_uuid_as_kafka_and_as_java_write_it() -> None:
    uuid = bytes(range(16))
    assert uuid_bytes(uuid_text(uuid)) == uuid
    assert uuid_hex(uuid) == "00010203-0405-0607-0809-0a0b0c0d0e0f"

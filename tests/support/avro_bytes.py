"""Avro data as bytes, for the pipeline's tests: the types that their schemas have."""

ORDER = """{"type": "record", "name": "Order", "namespace": "shop", "fields": [
  {"name": "id", "type": "long"},
  {"name": "name", "type": ["null", "string"], "default": null}
]}"""
"""The schema of `order`."""
OLDER = """{"type": "record", "name": "Order", "namespace": "shop", "fields": [
  {"name": "legacy", "type": "string"},
  {"name": "id", "type": "int"}
]}"""
"""The schema of `older_order`, which resolves to the other one."""


def number(value: int) -> bytes:
    """Return an int or long."""
    remainder, data = (value << 1) ^ (value >> 63), bytearray()
    while remainder > 0x7F:
        data.append(remainder & 0x7F | 0x80)
        remainder >>= 7
    return bytes([*data, remainder])


def text(value: str) -> bytes:
    """Return a string."""
    return number(len(value.encode())) + value.encode()


def order(order_id: int, name: str | None = None) -> bytes:
    """Return a record of ORDER."""
    return number(order_id) + (number(0) if name is None else number(1) + text(name))


def older_order(order_id: int) -> bytes:
    """Return a record of OLDER."""
    return text("x") + number(order_id)


def with_id(schema_id: int, datum: bytes) -> bytes:
    """Return a datum after the id of its schema in a registry."""
    return b"\0" + schema_id.to_bytes(4, "big") + datum

"""The partition of an internal topic that belongs to a key, such as a group's or transactional id.

Clients never compute it; the rule is Kafka's, so that data passes from one server to the other.
"""


def partition_for(key: str, partitions: int) -> int:
    """Return the key's partition: the absolute value of Java's string hash, as a remainder.

    The smallest 32-bit integer, which has no absolute value in Java, counts as 0.
    """
    units = key.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    if value >= 1 << 31:
        value -= 1 << 32
    return (0 if value == -(1 << 31) else abs(value)) % partitions

"""The relay of packets of the nemesis treats packets as the pace of their link says."""

from random import Random

import attrs

from compat_tests.nemesis.relay import MAC, QUEUE_SECONDS, Pace, Packets

SOURCE, TARGET = 1, 2
TARGET_MAC = "02:00:00:00:01:02"


def frame(number: int, source: int = SOURCE, target: int = TARGET) -> bytes:
    """Return an Ethernet frame with an IPv4 header, whose last bytes are a number."""
    ethernet = bytes(12) + b"\x08\x00"
    header = bytes(12) + bytes((10, 77, 0, source)) + bytes((10, 77, 0, target))
    return ethernet + header + number.to_bytes(4, "big")


def numbers(frames: list[bytes]) -> list[int]:
    return [int.from_bytes(frame[-4:], "big") for frame in frames]


def relay(pace: Pace) -> Packets:
    packets = Packets(Random(1))
    packets.set([(SOURCE, TARGET, TARGET_MAC, attrs.astuple(pace))])
    return packets


def test_late_packets_are_sent_to_the_target_in_their_order() -> None:
    packets = relay(Pace(delay_s=0.1, jitter_s=0.1))
    for number in range(20):
        packets.add(frame(number), number * 0.001)
    assert packets.take_due(0.09) == []
    assert packets.seconds_left(0.09) is not None
    sent = packets.take_due(1.0)
    assert numbers(sent) == list(range(20))
    assert sent[0][:6].hex(":") == TARGET_MAC
    assert sent[0][6:12].hex(":") == MAC
    assert packets.seconds_left(1.0) is None


def test_packets_overtake_others_only_on_a_reordering_link() -> None:
    packets = relay(Pace(jitter_s=0.1, is_reordering=True))
    for number in range(20):
        packets.add(frame(number), 0.0)
    sent = numbers(packets.take_due(1.0))
    assert sorted(sent) == list(range(20))
    assert sent != sorted(sent)


def test_a_part_of_the_packets_is_lost() -> None:
    packets = relay(Pace(loss=0.2))
    for number in range(1000):
        packets.add(frame(number), 0.0)
    assert 750 < len(packets.take_due(1.0)) < 850


def test_a_part_of_the_packets_is_sent_twice() -> None:
    packets = relay(Pace(repetition=0.2))
    for number in range(1000):
        packets.add(frame(number), 0.0)
    sent = numbers(packets.take_due(1.0))
    assert sorted(set(sent)) == list(range(1000))
    assert 1150 < len(sent) < 1250


def test_narrow_link_delays_packets_and_drops_what_would_wait_too_long() -> None:
    size = len(frame(0))
    packets = relay(Pace(bytes_per_s=size * 10))
    for number in range(1000):
        packets.add(frame(number), 0.0)
    assert len(packets.take_due(1.0)) == 10
    assert len(packets.take_due(100.0)) <= QUEUE_SECONDS * 10 + 1 - 10


def test_packets_of_other_links_are_dropped() -> None:
    packets = relay(Pace())
    packets.add(frame(1, source=TARGET, target=SOURCE), 0.0)
    assert packets.take_due(1.0) == []


def test_packets_of_a_link_that_is_healed_are_sent_at_once() -> None:
    packets = relay(Pace(delay_s=10.0))
    for number in range(3):
        packets.add(frame(number), 0.0)
    assert numbers(packets.set([])) == [0, 1, 2]
    assert packets.take_due(100.0) == []

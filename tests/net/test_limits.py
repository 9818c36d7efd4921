"""Limits on the number and the rate of connections."""

from kwire.net.limits import UNLIMITED, Admission, Limits, Rate


def test_rate_holds_one_second_of_tokens() -> None:
    rate = Rate(2)
    for _ in range(2):
        assert rate.wait(0.0) == 0.0
        rate.take()
    assert rate.wait(0.0) == 0.5
    assert rate.wait(0.5) == 0.0
    rate.take()
    assert rate.wait(100.0) == 0.0


def test_rate_extremes() -> None:
    assert Rate(UNLIMITED).wait(0.0) == 0.0
    assert Rate(0).wait(0.0) == float("inf")


def test_counts_per_node_listener_and_address() -> None:
    node = Limits(
        max_connections=3,
        max_connections_per_ip=2,
        max_connections_per_ip_overrides={"10.0.0.9": 0},
    )
    own = Limits(max_connections=2)
    admission = Admission(node)
    assert admission.crowded("10.0.0.9"), "an override of 0 shuts an address out"
    admission.opened("A", "10.0.0.1")
    admission.opened("A", "10.0.0.1")
    assert admission.crowded("10.0.0.1")
    assert not admission.crowded("10.0.0.2")
    assert admission.full("A", own)
    assert not admission.full("B", own)
    admission.opened("B", "10.0.0.2")
    assert admission.full("B", own), "the node's own limit"
    admission.closed("A", "10.0.0.1")
    assert not admission.full("A", own)
    assert not admission.crowded("10.0.0.1")


def test_addresses_are_forgotten() -> None:
    admission = Admission(Limits())
    for number in range(100):
        admission.opened("A", f"10.0.0.{number}")
        admission.closed("A", f"10.0.0.{number}")
    assert not admission.per_address

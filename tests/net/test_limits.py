"""Limits on the number and the rate of connections."""

from kwire.net.limits import UNLIMITED, Admission, Limits, Rate


def test_rate_holds_one_second_of_tokens() -> None:
    rate = Rate(2)
    for _ in range(2):
        assert rate.delay_s(0.0) == 0.0
        rate.take()
    assert rate.delay_s(0.0) == 0.5
    assert rate.delay_s(0.5) == 0.0
    rate.take()
    assert rate.delay_s(100.0) == 0.0


def test_rate_may_be_unlimited_or_zero() -> None:
    assert Rate(UNLIMITED).delay_s(0.0) == 0.0
    assert Rate(0).delay_s(0.0) == float("inf")


def test_connections_without_a_limit_do_not_count_towards_a_later_limit() -> None:
    rate = Rate(5)
    assert rate.delay_s(0.0) == 0.0
    rate.per_second = UNLIMITED
    for _ in range(1000):
        assert rate.delay_s(1.0) == 0.0
        rate.take()
    rate.per_second = 5
    assert rate.delay_s(2.0) == 0.0


def test_connections_are_counted_per_node_listener_and_address() -> None:
    node = Limits(
        max_connections=3,
        max_connections_per_ip=2,
        max_connections_per_ip_overrides={"10.0.0.9": 0},
    )
    own = Limits(max_connections=2)
    admission = Admission(node)
    assert admission.is_address_full("10.0.0.9"), "an override of 0 shuts an address out"
    admission.on_opened("A", "10.0.0.1")
    admission.on_opened("A", "10.0.0.1")
    assert admission.is_address_full("10.0.0.1")
    assert not admission.is_address_full("10.0.0.2")
    assert admission.is_full("A", own)
    assert not admission.is_full("B", own)
    admission.on_opened("B", "10.0.0.2")
    assert admission.is_full("B", own), "the node's own limit"
    admission.on_closed("A", "10.0.0.1")
    assert not admission.is_full("A", own)
    assert not admission.is_address_full("10.0.0.1")


def test_addresses_without_connections_take_no_memory() -> None:
    admission = Admission(Limits())
    for number in range(100):
        admission.on_opened("A", f"10.0.0.{number}")
        admission.on_closed("A", f"10.0.0.{number}")
    assert not admission.per_address

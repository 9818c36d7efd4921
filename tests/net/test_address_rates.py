"""The rates at which addresses may open connections (KIP-612)."""

import pytest

from kwire.net.address_rates import ADDRESSES_MAX, CREATED, AddressRates
from kwire.raftmeta.metadata.quota_lookup import Quotas


def rates(quotas: Quotas) -> AddressRates:
    subject = AddressRates(window_count=3, window_s=1.0)
    subject.follow(quotas)
    return subject


def count_allowed(subject: AddressRates, address: str, now: float, tries: int = 100) -> int:
    return sum(not subject.throttle_s(address, now) for _ in range(tries))


def test_addresses_without_a_quota_connect_freely() -> None:
    assert count_allowed(rates({}), "10.0.0.1", 0.0) == 100
    subject = rates({(("ip", "10.0.0.1"),): {CREATED: 1.0}})
    assert count_allowed(subject, "10.0.0.2", 0.0) == 100


def test_address_may_use_all_full_windows_at_once() -> None:
    subject = rates({(("ip", None),): {CREATED: 5.0}})
    assert count_allowed(subject, "10.0.0.1", 0.0) == 10
    assert count_allowed(subject, "10.0.0.2", 0.0) == 10, "a default holds for each by itself"
    assert count_allowed(subject, "10.0.0.1", 2.5) == 2, "12 within 2.5 s are 5 a second"


def test_quota_of_an_address_comes_before_the_default() -> None:
    quotas: Quotas = {(("ip", None),): {CREATED: 1.0}, (("ip", "10.0.0.1"),): {CREATED: 3.0}}
    subject = rates(quotas)
    assert count_allowed(subject, "10.0.0.1", 0.0) == 6
    assert count_allowed(subject, "10.0.0.2", 0.0) == 2
    subject.follow({(("ip", None),): {CREATED: 4.0}})
    assert count_allowed(subject, "10.0.0.1", 0.0) == 2, "a new quota counts what was before"


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("0:0:0:0:0:0:0:1", "::1"),
        ("2001:DB8::0:1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("10.1", "10.0.0.1"),
    ],
)
def test_quota_applies_however_its_address_is_written(name: str, address: str) -> None:
    subject = rates({(("ip", name),): {CREATED: 1.0}})
    assert count_allowed(subject, address, 0.0) == 2


def test_quota_of_a_host_name_limits_nobody() -> None:
    subject = rates({(("ip", "localhost"),): {CREATED: 1.0}, (("user", "u"),): {"rate": 1.0}})
    assert count_allowed(subject, "127.0.0.1", 0.0) == 100


def test_connection_over_the_rate_waits_for_one_window_at_the_most() -> None:
    subject = rates({(("ip", None),): {CREATED: 0.5}})
    assert [subject.throttle_s("10.0.0.1", 0.0) for _ in range(3)] == [0.0, 1.0, 1.0]
    quick = rates({(("ip", None),): {CREATED: 10.0}})
    assert count_allowed(quick, "10.0.0.1", 0.0, tries=20) == 20
    assert quick.throttle_s("10.0.0.1", 0.0) == 0.1


def test_rates_of_few_addresses_are_remembered() -> None:
    subject = rates({(("ip", None),): {CREATED: 0.5}})
    for number in range(2 * ADDRESSES_MAX):
        subject.throttle_s(f"address {number}", 0.0)
    assert len(subject._rates) <= ADDRESSES_MAX

"""Finds the quota of a client: the most specific quota for its user and client id (KIP-55).

It also reads the addresses of quotas, which may be written in several ways.
"""

from collections.abc import Mapping
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

from kwire.raftmeta.metadata.image import QuotaEntity

Quotas = Mapping[QuotaEntity, Mapping[str, float]]
"""The quotas of a cluster: their values by name, for each entity."""
CLIENT_ID_LENGTH: Final = 255
"""The longest client id that is stored unchanged: clients may send 32 KB."""
_IPV4_LENGTH: Final = 15
"""The number of characters of the longest IPv4 address that Java reads."""


class ClientQuota(NamedTuple):
    """A limit, and the clients that share it."""

    rate: float
    """The limit per second."""
    user: str | None
    """The user whose clients share the quota; None if it does not depend on the user."""
    client_id: str | None
    """The client id whose clients share the quota, in its short form; None if the quota does not
    depend on the client id."""


def short_client_id(client_id: str) -> str:
    """Return a client id, or a digest of an id that is too long to be stored."""
    if len(client_id) <= CLIENT_ID_LENGTH:
        return client_id
    return sha256(client_id.encode()).hexdigest()


def find_quota(quotas: Quotas, name: str, user: str, client_id: str) -> ClientQuota | None:
    """Return the quota called ``name`` that applies to a client, or None without a limit.

    A default applies to each user or client id separately.
    """
    for entity in _entities(user, client_id):
        rate = quotas.get(entity, {}).get(name)
        if rate is not None:
            kinds = {kind for kind, _ in entity}
            shared_by = user if "user" in kinds else None
            short_id = short_client_id(client_id) if "client-id" in kinds else None
            return ClientQuota(rate, shared_by, short_id)
    return None


def _entities(user: str, client_id: str) -> list[QuotaEntity]:
    """Return the entities whose quotas may apply, most specific first; None means the default.

    No quota of client ids applies to a client without one, as in Kafka.
    """
    if not client_id:
        return [(("user", user),), (("user", None),)]
    return [
        (("client-id", client_id), ("user", user)),
        (("client-id", None), ("user", user)),
        (("user", user),),
        (("client-id", client_id), ("user", None)),
        (("client-id", None), ("user", None)),
        (("user", None),),
        (("client-id", client_id),),
        (("client-id", None),),
    ]


def client_address(name: str) -> str | None:
    """Return the address that a quota names, in the form of the addresses of clients.

    Addresses are those that Java reads: an IPv4 address may have fewer parts. Return None for any
    other name, such as that of a host.
    """
    try:
        address = ip_address(name)
    except ValueError:
        number = _short_ipv4(name)
        return None if number is None else str(IPv4Address(number))
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address).partition("%")[0]  # As in Java, the scope does not matter.


def _short_ipv4(name: str) -> int | None:
    """Return the number of an IPv4 address whose last part stands for several bytes."""
    parts = name.split(".")
    is_numeric = name.isascii() and all(map(str.isdecimal, parts))
    if len(name) > _IPV4_LENGTH or not is_numeric or len(parts) > 4:
        return None
    *first, last = map(int, parts)
    if max(first, default=0) >= 256 or last >= 256 ** (5 - len(parts)):
        return None
    return sum(part << 24 - 8 * place for place, part in enumerate(first)) + last

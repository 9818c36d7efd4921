"""Finds the quota of a client: the most specific quota for its user and client id (KIP-55)."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Final, NamedTuple

from kwire.raftmeta.metadata.image import QuotaEntity

Quotas = Mapping[QuotaEntity, Mapping[str, float]]
"""The quotas of a cluster: their values by name, for each entity."""
CLIENT_ID_LENGTH: Final = 255
"""The longest client id that is stored unchanged: clients may send 32 KB."""


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

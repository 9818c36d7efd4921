"""All mistakes that the simulation of replication must catch."""

from typing import Final

from simulation.replication.mutations.assigned_groups import MUTATIONS as ASSIGNED_GROUPS
from simulation.replication.mutations.groups import MUTATIONS as GROUPS
from simulation.replication.mutations.leases import MUTATIONS as LEASES
from simulation.replication.mutations.metadata import MUTATIONS as METADATA
from simulation.replication.mutations.moves import MUTATIONS as MOVES
from simulation.replication.mutations.operators import MUTATIONS as OPERATORS
from simulation.replication.mutations.replicas import MUTATIONS as REPLICAS
from simulation.replication.mutations.share_groups import MUTATIONS as SHARE_GROUPS
from simulation.replication.mutations.staged import MUTATIONS as STAGED
from simulation.replication.mutations.transactions import MUTATIONS as TRANSACTIONS

MUTATIONS: Final = (
    *REPLICAS,
    *TRANSACTIONS,
    *GROUPS,
    *ASSIGNED_GROUPS,
    *SHARE_GROUPS,
    *LEASES,
    *METADATA,
    *OPERATORS,
    *MOVES,
    *STAGED,
)

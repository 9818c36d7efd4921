"""All scenes of the table."""

from typing import Any, Final

from tests.support.turns.table import Scene
from tests.turns.acls import ACLS
from tests.turns.connections import CONNECTED
from tests.turns.consumers import CONSUMED
from tests.turns.controller import DECISIONS
from tests.turns.directory_assignments import ASSIGNING
from tests.turns.fetchers import FOLLOWED
from tests.turns.groups import GROUPED
from tests.turns.images import IMAGES
from tests.turns.indexes import INDEXED
from tests.turns.logs import LOGS
from tests.turns.members import MEMBERED
from tests.turns.migrations import MIGRATED
from tests.turns.open_transactions import OPENED
from tests.turns.replica.damage_repair import DAMAGED
from tests.turns.replica.fetch_waits import WAITING
from tests.turns.replica.isr_changes import LED
from tests.turns.roles import ROLES
from tests.turns.scrubs import SCRUBS
from tests.turns.share_groups import SHARING
from tests.turns.share_states import STATES
from tests.turns.shares import SHARED
from tests.turns.snapshots import SNAPSHOTS
from tests.turns.starts import STARTED
from tests.turns.streams_groups import STREAMING
from tests.turns.telemetry import TELEMETRY
from tests.turns.tokens import TOKENS
from tests.turns.topics import TOPICS
from tests.turns.transactions import PARTITIONED_WITH_TRANSACTIONS
from tests.turns.users import USERS

SCENES: Final[tuple[Scene[Any], ...]] = (
    LOGS,
    INDEXED,
    STARTED,
    SCRUBS,
    DAMAGED,
    ROLES,
    FOLLOWED,
    WAITING,
    ASSIGNING,
    LED,
    IMAGES,
    SNAPSHOTS,
    TOPICS,
    USERS,
    TOKENS,
    TELEMETRY,
    PARTITIONED_WITH_TRANSACTIONS,
    OPENED,
    GROUPED,
    MEMBERED,
    CONSUMED,
    CONNECTED,
    MIGRATED,
    STATES,
    DECISIONS,
    ACLS,
    SHARED,
    SHARING,
    STREAMING,
)

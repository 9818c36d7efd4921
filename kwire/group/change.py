"""What the records of one batch change for one group, all at once."""

import attrs

from kwire.group.offsets import Committed


@attrs.define
class GroupChange:
    """Offsets that are set or removed together; a group that goes with them."""

    group_id: str
    committed: dict[str, dict[int, Committed]] = attrs.field(factory=dict)
    """By topic and partition."""
    removed: dict[str, list[int]] = attrs.field(factory=dict)
    deletes_group: bool = False

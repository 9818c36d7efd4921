"""The changes that the records of one batch make to one group, applied at once."""

from kwire import attrs
from kwire.group.offsets import Packed


@attrs.define
class GroupChange:
    """Offsets of a group that are set or removed together; the group may be deleted with them."""

    group_id: str
    committed: dict[str, dict[int, Packed]] = attrs.field(factory=dict)
    """The committed offsets by topic and partition."""
    removed: dict[str, list[int]] = attrs.field(factory=dict)
    deletes_group: bool = False

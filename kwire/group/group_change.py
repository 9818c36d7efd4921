"""Changes to one group that are written in one batch and applied together."""

from kwire import attrs
from kwire.group.offsets import Packed


@attrs.define
class GroupChange:
    """Offsets of a group to set or remove together, and whether the group is deleted with them."""

    group_id: str
    committed: dict[str, dict[int, Packed]] = attrs.field(factory=dict)
    """The committed offsets by topic and partition."""
    removed: dict[str, list[int]] = attrs.field(factory=dict)
    deletes_group: bool = False

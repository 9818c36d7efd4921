"""The plan to open a log, made from the names in its directory alone.

It says which files unfinished operations left behind, and which segments there are.
:mod:`kwire.log.recovery` carries it out, and reads compacted segments that are to be swapped in.
"""

from collections import defaultdict
from collections.abc import Generator, Iterable
from typing import Final, NamedTuple

from kwire.log.disk import TEMPORARY, Entry
from kwire.log.formats import names

SLICE_NAMES: Final = 500
"""The number of names in a directory that are looked at between two yields."""


class Plan(NamedTuple):
    """The steps to open a log, derived from the names in a partition's directory."""

    remove: list[str]
    """Files left over from unfinished operations."""
    unused: list[str]
    """The files of empty segments, the last segment first.

    They are to be removed after the recovery, whose judgement needs them: a power loss could
    restore segments that the recovery has removed, but not these.
    """
    replace: list[tuple[str, str]]
    """Files of a complete compaction that have to be renamed, in order."""
    segments: list[tuple[int, int, int]]
    """Base offset, size and modification time of each segment, in order."""
    sizes: dict[str, int]
    snapshots: list[int]
    unindexed: list[int]
    """Base offsets of segments without an offset index, including segments that will be removed."""


def planning(entries: Iterable[Entry]) -> Generator[None, None, Plan]:
    """Plan in steps of a few names."""
    sizes: dict[str, int] = {}
    modified_ms: dict[str, int] = {}
    by_suffix = defaultdict[str, list[str]](list)
    for count, entry in enumerate(entries, 1):
        if not entry.is_directory:
            sizes[entry.name], modified_ms[entry.name] = entry.size, entry.modified_ms
            by_suffix["." + entry.name.rpartition(".")[2]].append(entry.name)
        if not count % SLICE_NAMES:
            yield
    remove = by_suffix[names.DELETED] + by_suffix[TEMPORARY]
    cleaned = by_suffix[names.CLEANED]
    cleaned_offsets = [o for o in map(names.stem_offset, cleaned) if o is not None]
    replace, incomplete = [], list[str]()
    for name in sorted(by_suffix[names.SWAP], key=_log_first):
        offset = names.stem_offset(name)
        # A .cleaned file beside it means that not all files of a group were renamed to .swap.
        if offset is None or (cleaned_offsets and offset >= min(cleaned_offsets)):
            incomplete.append(name)
        else:
            replace.append((name, name.removesuffix(names.SWAP)))
        yield
    # The .cleaned files go last: after a crash they still show which groups are incomplete.
    remove += incomplete + cleaned
    logs = sorted(name for name in by_suffix[names.LOG] if len(name) == 24)
    # A failed or interrupted roll left them; their offsets may be in the segment before.
    unused = [name for name in logs[-2:0:-1] if not sizes[name]]
    unused_offsets = {names.stem_offset(name) for name in unused}
    yield
    bases = {names.stem_offset(name) for name in by_suffix[names.LOG]} - unused_offsets
    bases |= {names.stem_offset(target) for _, target in replace if target.endswith(names.LOG)}
    for suffix in names.SEGMENT_SUFFIXES[1:]:
        yield
        for name in by_suffix[suffix]:
            offset = names.stem_offset(name)
            if offset not in bases:
                (unused if offset in unused_offsets else remove).append(name)
    yield
    snapshots = [o for o in map(names.stem_offset, by_suffix[names.SNAPSHOT]) if o is not None]
    snapshots.sort()
    yield
    segments = [
        (offset, sizes[name], modified_ms[name])
        for name in logs
        if (offset := int(name[:20])) not in unused_offsets
    ]
    yield
    unindexed = [int(name[:20]) for name in logs if name[:20] + names.INDEX not in sizes]
    return Plan(
        remove=remove,
        unused=unused,
        replace=replace,
        segments=segments,
        sizes=sizes,
        snapshots=snapshots,
        unindexed=unindexed,
    )


def _log_first(name: str) -> tuple[str, bool, str]:
    """Return a sort key that puts the log file of each segment first."""
    return name[:20], not name[20:].startswith(names.LOG), name

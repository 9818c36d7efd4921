"""Checks of whole indexes, as bytes."""

from kwire.log.formats import offset_index, time_index


def are_offsets_plausible(data: bytes, log_size: int) -> bool:
    """Return whether offsets and positions grow and stay inside a log file of this size."""
    if len(data) % offset_index.ENTRY_SIZE:
        return False
    previous = (-1, 0)
    for entry in offset_index.ENTRY.iter_unpack(data):
        if entry[0] <= previous[0] or entry[1] <= previous[1] or entry[1] >= log_size:
            return False
        previous = entry
    return True


def are_times_plausible(data: bytes) -> bool:
    """Return whether timestamps and offsets grow."""
    if len(data) % time_index.ENTRY_SIZE:
        return False
    previous = (-1, -1)
    for entry in time_index.ENTRY.iter_unpack(data):
        if entry[0] <= previous[0] or entry[1] < max(previous[1], 0):
            return False
        previous = entry
    return True

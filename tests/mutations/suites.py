"""Mistakes that clients see in a broker with faults, or that hostile requests show."""

from typing import Final

from tests.mutations.table import Mutation

CLIENTS: Final = "compat_tests/durability/test_history.py::test_clients_see_no_anomaly"
STOPS: Final = "compat_tests/durability/test_history.py::test_stop_may_be_cut_short_at_any_time"
WIRE: Final = "tests/server/test_wire_abuse.py"
BOMBS: Final = "tests/replica/test_decompression_limits.py"

MUTATIONS = (
    Mutation(
        name="recovery-drops-last-batches",
        invariants=(1,),
        path="kwire/log/recovery.py",
        old="while position + HEADER_SIZE <= size:",
        new="while position + 600 <= size:",
        test=CLIENTS,
    ),
    Mutation(
        name="offset-given-again-after-clean-stop",
        invariants=(2,),
        path="kwire/log/recovery.py",
        old="log.end_offset = log.flush_state.recovery_point = "
        "log.writer.written_offset = end_offset",
        new="log.end_offset = log.flush_state.recovery_point = log.writer.written_offset = max(\n"
        "        end_offset - 1, 0)",
        test=CLIENTS,
    ),
    Mutation(
        name="recovery-forgets-sequences",
        invariants=(3,),
        path="kwire/log/recovery.py",
        old="aborted = log.producers.replay(data, pos, header)",
        new="aborted = None",
        test=CLIENTS,
    ),
    Mutation(
        name="fetch-passes-over-small-batches",
        invariants=(7,),
        path="kwire/log/log_segments.py",
        old="                first = segment.locate(offset, wait=wait)\n",
        new="                first = segment.locate(offset + 1, wait=wait)\n",
        test=CLIENTS,
    ),
    Mutation(
        name="acknowledgement-names-another-offset",
        invariants=(8, 9),
        path="kwire/replica/usual_append.py",
        old="        base_offset, NO_TIMESTAMP, start, end_offset",
        new="        base_offset & ~7, NO_TIMESTAMP, start, end_offset",
        test=CLIENTS,
    ),
    Mutation(
        name="later-commit-is-ignored",
        invariants=(11,),
        path="kwire/group/offsets.py",
        old="        partitions.update(committed)",
        new="        partitions.update({**committed, **partitions})",
        test=CLIENTS,
    ),
    Mutation(
        name="commit-passes-one-record-more",
        invariants=(11,),
        path="kwire/group/commit_records.py",
        old="pack_numbers(offset, leader_epoch, wall_ms",
        new="pack_numbers(offset + 1, leader_epoch, wall_ms",
        test=CLIENTS,
    ),
    Mutation(
        name="last-record-is-never-readable",
        invariants=(12,),
        path="kwire/replica/partition.py",
        old="end = high_watermark if isolation is FetchIsolation.HIGH_WATERMARK else stable",
        new="end = high_watermark if isolation is FetchIsolation.HIGH_WATERMARK else stable - 1",
        test=CLIENTS,
    ),
    Mutation(
        name="announced-lengths-are-allocated",
        invariants=(96,),
        path="kwire/codec/primitives.py",
        old='raise MalformedError(f"{length} bytes or elements',
        new='b"x" * min(length, 1 << 29); raise MalformedError(f"{length} bytes or elements',
        test=f"{WIRE}::test_damaged_requests_are_answered_or_end_their_own_connection",
    ),
    Mutation(
        name="old-versions-keep-their-shapes",
        invariants=(97,),
        path="kwire/handlers/dispatch.py",
        old="if route.widen is not None:",
        new="if route.widen is not None and version > 3:",
        test=f"{WIRE}::test_every_advertised_version_is_answered_in_its_own_shape",
    ),
    Mutation(
        name="next-version-is-served-unasked",
        invariants=(97,),
        path="kwire/handlers/dispatch.py",
        old="if not api.is_stable(version):",
        new="if version < api.first:",
        test=f"{WIRE}::test_request_that_is_not_advertised_ends_the_connection",
    ),
    Mutation(
        name="small-batches-unpack-on-the-loop",
        invariants=(98,),
        path="kwire/replica/unpacking.py",
        old="return build.recompress(batch, header, codec, HERE_BYTES)",
        new="return build.recompress(batch, header, codec, PAYLOAD_MAX)",
        test=f"{BOMBS}::test_payload_of_high_ratio_is_decompressed_in_a_thread",
    ),
    Mutation(
        name="all-payloads-unpack-at-once",
        invariants=(98,),
        path="kwire/replica/unpacking.py",
        old="threads: trio.CapacityLimiter = attrs.field(factory=lambda:",
        new="threads: trio.CapacityLimiter = attrs.field(factory=lambda THREADS=40:",
        test=f"{BOMBS}::test_number_of_payloads_decompressed_at_once_is_limited",
    ),
    Mutation(
        name="gzip-members-without-end",
        invariants=(98,),
        path="kwire/records/compression.py",
        old="for _ in range(_GZIP_MEMBERS):",
        new="for _ in range(1 << 40):",
        test=f"{BOMBS}::test_gzip_of_thousands_of_members_is_refused",
    ),
    Mutation(
        name="stop-leaves-no-marker",
        invariants=(109,),
        path="kwire/log/directories/directory.py",
        old="files.append((names.CLEAN_SHUTDOWN, marker))",
        new="pass",
        test=STOPS,
    ),
    Mutation(
        name="marker-outlives-the-start",
        invariants=(81, 109),
        path="kwire/log/directories/directory.py",
        old="self.disk.remove(names.CLEAN_SHUTDOWN)",
        new="pass",
        test=STOPS,
    ),
    Mutation(
        name="restart-forgets-members",
        invariants=(72, 109),
        path="kwire/group/shard.py",
        old="self._apply_group(group_id, record.value)",
        new="pass",
        test=STOPS,
    ),
)

"""The text of ``kwire dump-log``: the content of one file of a log, line by line.

It only reads. It reports damage as a line and continues where it can.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePath
from typing import Final

from kwire.log.formats import names, offset_index, time_index, txn_index
from kwire.log.producers import CorruptSnapshot, read_snapshot
from kwire.records import compression
from kwire.records.control import ControlType, parse_key
from kwire.records.header import BatchHeader, crc_ok
from kwire.records.iterate import BadRecords, Record, batches
from kwire.records.iterate import records as records_of

CODECS: Final = {
    compression.NONE: "none",
    compression.GZIP: "gzip",
    compression.SNAPPY: "snappy",
    compression.LZ4: "lz4",
    compression.ZSTD: "zstd",
}


Meaning = Callable[[bytes | None], object]
"""Decodes a record's value; raises ValueError for a value of another kind."""


def dump(path: str, *, records: bool = False, meaning: Meaning | None = None) -> Iterator[str]:
    """Yield the lines for one file, by its suffix; ``records`` adds the records of the batches.

    Raises ValueError for a file that is neither text nor named as a file of a log.
    """
    name = PurePath(path).name.removesuffix(names.DELETED)
    with open(path, "rb") as file:
        data = file.read()
    yield f"{path}"
    stem = names.stem_offset(name)
    base_offset = 0 if stem is None else stem
    if name.endswith((names.LOG, ".checkpoint", names.CLEANED, names.SWAP)):
        yield from _log(data, records, meaning)
    elif name.endswith(names.TIME_INDEX):
        for timestamp, offset in time_index.entries(data, base_offset):
            if timestamp > 0:
                yield f"timestamp={timestamp} offset={offset}"
    elif name.endswith(names.TXN_INDEX):
        for aborted in txn_index.entries(data):
            fields = aborted._asdict().items()
            yield " ".join(f"{key}={value}" for key, value in fields)
    elif name.endswith(names.INDEX):
        for offset, position in offset_index.entries(data, base_offset):
            if position > 0:
                yield f"offset={offset} position={position}"
    elif name.endswith(names.SNAPSHOT):
        yield from _snapshot(data)
    else:
        yield from _text(data)


def _text(data: bytes) -> Iterable[str]:
    """Return the lines of a text file, such as a checkpoint; raise ValueError for other files."""
    lines = data.decode(errors="surrogateescape").splitlines()
    if not all(line.replace("\t", "").isprintable() for line in lines):
        raise ValueError(
            "it is neither text nor named as a file of a log (*.log, *.index, *.timeindex, "
            "*.txnindex, *.snapshot, *.checkpoint)"
        )
    return lines


def _log(data: bytes, with_records: bool, meaning: Meaning | None) -> Iterator[str]:
    end, previous = 0, -1
    try:
        for pos, header in batches(data):
            yield _batch(data, pos, header)
            if header.base_offset <= previous:
                yield f"  problem: the offset does not follow {previous}"
            previous = header.last_offset
            if with_records:
                yield from _records(data, pos, header, meaning)
            end = pos + header.size
    except ValueError as error:
        yield f"  problem: {error}"
    except Exception as error:  # noqa: BLE001 - whatever the bytes cause, the rest is reported
        yield f"  problem: {error!r}"
    if end < len(data):
        yield f"trailing={len(data) - end} bytes that are not a whole batch"


def _batch(data: bytes, pos: int, header: BatchHeader) -> str:
    good = header.magic < 2 or crc_ok(data, pos, header)
    flags = [
        word
        for word, is_set in (
            ("control", header.is_control),
            ("transactional", header.is_transactional),
            ("log-append-time", header.is_log_append_time),
        )
        if is_set
    ]
    horizon = header.delete_horizon_ms
    return " ".join(
        [
            f"offsets={header.base_offset}..{header.last_offset}",
            f"position={pos}",
            f"size={header.size}",
            f"records={header.record_count}",
            f"epoch={header.leader_epoch}",
            f"time={header.max_timestamp}",
            f"codec={CODECS.get(header.compression, header.compression)}",
            f"producer={header.producer_id}:{header.producer_epoch}",
            f"sequence={header.base_sequence}..{header.last_sequence}",
            f"magic={header.magic}",
            f"crc={header.crc:08x}{'' if good else ' WRONG'}",
            *flags,
            *([] if horizon is None else [f"delete-horizon={horizon}"]),
        ]
    )


def _records(data: bytes, pos: int, header: BatchHeader, meaning: Meaning | None) -> Iterator[str]:
    try:
        for record in records_of(data, pos, header):
            yield _record(record, header, meaning)
    except BadRecords as error:
        yield f"  problem: {error}"


def _record(record: Record, header: BatchHeader, meaning: Meaning | None) -> str:
    fields = [f"  offset={record.offset}", f"time={record.timestamp}"]
    if header.is_control:
        control = parse_key(record.key)
        is_known = control is not None and control.type in set(ControlType)
        fields.append(
            f"control={ControlType(control.type).name if is_known and control else control}"
        )
    elif meaning is not None:
        try:
            fields.append(str(meaning(record.value)))
        except ValueError as error:
            fields.append(f"value={record.value!r} problem: {error}")
    else:
        fields += [f"key={record.key!r}", f"value={record.value!r}"]
    if record.headers:
        fields.append(f"headers={list(record.headers)!r}")
    return " ".join(fields)


def _snapshot(data: bytes) -> Iterator[str]:
    try:
        producers = read_snapshot(data)
    except CorruptSnapshot as error:
        yield f"problem: {error}"
        return
    for producer in producers:
        last = producer.batches[-1] if producer.batches else None
        yield " ".join(
            [
                f"producer={producer.producer_id}:{producer.epoch}",
                f"last-sequence={producer.last_sequence}",
                f"last-offset={last.last_offset if last else -1}",
                f"offset-delta={last.offset_delta if last else 0}",
                f"time={producer.timestamp}",
                f"coordinator-epoch={producer.coordinator_epoch}",
                f"open-from={producer.open_from}",
            ]
        )

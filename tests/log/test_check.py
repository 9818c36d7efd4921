"""``kwire check-log`` names damage by file, offset and reason, and only damage."""

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from kwire.cli import main
from kwire.log.formats import names
from kwire.log.inspection.check import Check, Damage
from kwire.records.header import headers
from tests.support.log import golden


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.unpack("clean", tmp_path_factory.mktemp("sound")) / "data"


def copy(source: Path, target: Path) -> Path:
    """Copy a partition's directory."""
    target.mkdir()
    for file in source.iterdir():
        target.joinpath(file.name).write_bytes(file.read_bytes())
    return target


def findings(path: Path) -> list[Damage]:
    return list(Check().run(path))


def segments(directory: Path) -> list[Path]:
    """Return the segments of all partitions that have batches."""
    return [path for path in sorted(directory.glob("*-*/*.log")) if path.stat().st_size]


@pytest.mark.parametrize(
    ("name", "folder"), [("clean", "data"), ("killed", "data2"), ("three", "n2/data")]
)
def test_directory_of_kafka_is_sound(name: str, folder: str, tmp_path: Path) -> None:
    check = Check()
    assert not list(check.run(golden.unpack(name, tmp_path) / folder))
    assert check.segment_count > 20
    assert check.batch_count > 300


def test_flipped_bit_is_reported_at_its_batch(sound: Path, tmp_path: Path) -> None:
    random = Random(7)
    logs = segments(sound)
    for number in range(60):
        log = random.choice(logs)
        data = bytearray(log.read_bytes())
        batches = list(headers(bytes(data)))
        position, header = random.choice(batches)
        # Offset and leader epoch have no checksum; a flipped length hides what is behind it.
        at = random.randrange(position + 16, position + header.size)
        data[at] ^= 1 << random.randrange(8)
        partition = copy(log.parent, tmp_path / str(number))
        (partition / log.name).write_bytes(data)
        damage = findings(partition)
        assert [item.path.name for item in damage][:1] == [log.name], (log, at)
        assert damage[0].position == position, (log, at)


def test_batches_behind_a_damaged_one_are_checked(sound: Path, tmp_path: Path) -> None:
    log = max(segments(sound), key=lambda path: len(list(headers(path.read_bytes()))))
    data = bytearray(log.read_bytes())
    batches = list(headers(bytes(data)))
    for position, _ in (batches[1], batches[3]):
        data[position + 40] ^= 1
    partition = copy(log.parent, tmp_path / "p")
    (partition / log.name).write_bytes(data)
    damage = [item for item in findings(partition) if item.path.name == log.name]
    assert [(item.offset, item.reason) for item in damage] == [
        (batches[1][1].base_offset, "wrong CRC"),
        (batches[3][1].base_offset, "wrong CRC"),
    ]


def test_torn_end_is_reported_with_the_bytes_behind_it(sound: Path, tmp_path: Path) -> None:
    log = segments(sound)[0]
    partition = copy(log.parent, tmp_path / "p")
    data = log.read_bytes()
    (partition / log.name).write_bytes(data[:-1])
    position, header = list(headers(data))[-1]
    reason = f"cut off inside a batch of {header.size} bytes; {header.size - 1} bytes from here on"
    damage = findings(partition)[0]
    assert (damage.offset, damage.position) == (header.base_offset, position)
    assert damage.reason.startswith(reason)


def test_index_entries_are_compared_with_the_batches(sound: Path, tmp_path: Path) -> None:
    index = next(path for path in sorted(sound.glob("*-*/*.index")) if path.stat().st_size)
    partition = copy(index.parent, tmp_path / "p")
    data = bytearray(index.read_bytes())
    data[7] ^= 1  # The lowest bit of the first position.
    (partition / index.name).write_bytes(data)
    (damage,) = findings(partition)
    assert damage.path.name == index.name
    assert damage.reason.startswith("no batch begins at position")


def test_time_index_with_a_wrong_time_is_reported(sound: Path, tmp_path: Path) -> None:
    index = next(path for path in sorted(sound.glob("*-*/*.timeindex")) if path.stat().st_size)
    partition = copy(index.parent, tmp_path / "p")
    data = bytearray(index.read_bytes())
    data[-12] ^= 1  # The highest byte of the last timestamp.
    (partition / index.name).write_bytes(data)
    (damage,) = findings(partition)
    assert damage.path.name == index.name
    assert "the largest one so far is" in damage.reason


def test_aborted_transaction_without_marker_is_reported(sound: Path, tmp_path: Path) -> None:
    index = next(path for path in sorted(sound.glob("*-*/*.txnindex")) if path.stat().st_size)
    partition = copy(index.parent, tmp_path / "p")
    data = bytearray(index.read_bytes())
    data[25] ^= 2  # The marker's offset.
    (partition / index.name).write_bytes(data)
    assert [item.path.suffix for item in findings(partition)] == [names.TXN_INDEX]


def test_command_exits_with_2_and_one_line_for_each_damage(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["check-log", str(sound)])
    assert capsys.readouterr().out.endswith("damage=0\n")
    log = segments(sound)[0]
    partition = copy(log.parent, tmp_path / "p")
    (partition / log.name).write_bytes(b"\0" * 100)
    with pytest.raises(SystemExit) as stopped:
        main(["check-log", str(partition)])
    assert stopped.value.code == 2
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == (
        f"{partition / log.name}: position=0 problem: not a batch: length 0, magic 0; "
        "100 bytes from here on were not checked"
    )
    assert last.startswith("checked segments=")


def test_folder_without_a_log_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["check-log", str(tmp_path)])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == (
        f"kwire: {tmp_path} does not contain a log: name a data directory or a partition's folder\n"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who holds a lock")
def test_directory_in_use_is_checked_with_a_warning(
    sound: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rolled segments without complete indexes, for example, would be taken for damage."""
    partition = segments(sound)[0].parent
    script = "from kwire.log.directory_lock import DirectoryLock\n"
    script += f"lock = DirectoryLock({str(sound / names.LOCK)!r})\nprint(1, flush=True)\ninput()"
    holder = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"1\n"
        for path in (sound, partition, partition / "00000000000000000000.log"):
            main(["check-log", str(path)])
            captured = capsys.readouterr()
            assert f"warning: a broker is using {sound}: what it writes" in captured.err
            assert "damage=0" in captured.out
        holder.communicate(b"\n")
    main(["check-log", str(sound)])
    assert not capsys.readouterr().err

"""A file beside the checkpoint is whole at every moment."""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from kwire_pipeline.engine.storage import Folder

CHECKSUM_OF_OTHER_TEXT = b"crc\x00\x00\x00\x02\x00\x01\x02\x03\x04"


def test_local_file_is_replaced_in_one_step(spark: SparkSession, tmp_path: Path) -> None:
    """A checksum beside the file would be replaced in a second one."""
    folder = Folder(spark, str(tmp_path / "checkpoint"))
    folder.write("pipeline.json", "old")
    assert folder.read("pipeline.json") == "old"
    folder.write("pipeline.json", "new")
    assert folder.read("pipeline.json") == "new"
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["pipeline.json"]


def test_file_is_readable_beside_the_checksum_of_an_earlier_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    """An earlier version of the pipeline left it, killed between the two renames."""
    folder = Folder(spark, str(tmp_path))
    (tmp_path / "pipeline.json").write_text("text")
    (tmp_path / ".pipeline.json.crc").write_bytes(CHECKSUM_OF_OTHER_TEXT)
    assert folder.read("pipeline.json") == "text"
    folder.write("pipeline.json", "new")
    assert folder.read("pipeline.json") == "new"
    assert list(folder.files()) == [("pipeline.json", 3)]


def test_file_is_created_once(spark: SparkSession, tmp_path: Path) -> None:
    folder = Folder(spark, str(tmp_path / "checkpoint"))
    assert folder.create("writer.json", "first")
    assert not folder.create("writer.json", "second")
    assert folder.read("writer.json") == "first"
    folder.delete("writer.json")
    assert folder.names() == []


def test_of_two_writers_at_the_same_time_one_creates_the_file(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have looked for the file and written their text before the first one gives it a name."""
    folder = Folder(spark, str(tmp_path / "checkpoint"))
    put, second_has_put, first_is_done = Folder._put, Event(), Event()
    second: list[Future[bool]] = []

    def put_with_pause(own: Folder, name: str, text: str, *, overwrite: bool) -> None:
        put(own, name, text, overwrite=overwrite)
        if text == "first":
            second.append(executor.submit(folder.create, "writer.json", "second"))
            assert second_has_put.wait(300)
        else:
            second_has_put.set()
            assert first_is_done.wait(300)

    monkeypatch.setattr(Folder, "_put", put_with_pause)
    with ThreadPoolExecutor(1) as executor:
        assert folder.create("writer.json", "first")
        first_is_done.set()
        assert not second[0].result(300)
    assert folder.read("writer.json") == "first"
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["writer.json"]


def test_name_that_appears_during_the_creation_of_a_file_is_not_replaced(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Hadoop's rename on a local disk looks first, so that a name could appear in between."""
    folder = Folder(spark, str(tmp_path))
    folder.write("writer.json", "first")
    folder.write("scratch", "second")
    with pytest.raises(Py4JJavaError, match="FileAlreadyExists"):
        folder._hadoop.publish(folder._at("scratch")[1], folder._at("writer.json")[1])
    assert folder.read("writer.json") == "first"


def test_file_is_moved_to_another_folder(spark: SparkSession, tmp_path: Path) -> None:
    folder = Folder(spark, str(tmp_path))
    folder.at("staging").write("part", "rows")
    folder.at("staging/part").move_to(folder.at("table/day=1/part"))
    assert (tmp_path / "table/day=1/part").read_text() == "rows"
    assert not folder.exists("staging/part")


def test_only_a_folder_without_files_is_deleted(spark: SparkSession, tmp_path: Path) -> None:
    folder = Folder(spark, str(tmp_path / "checkpoint"))
    folder.delete_empty()
    folder.write(".hidden", "text")
    folder.delete_empty()
    assert folder.read(".hidden") == "text"
    folder.delete(".hidden")
    folder.delete_empty()
    assert not folder.exists()

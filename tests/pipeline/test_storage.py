"""A file beside the checkpoint is whole at every moment."""

from pathlib import Path

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

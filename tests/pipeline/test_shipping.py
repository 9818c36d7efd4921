"""Executors have the modules of a transform, wherever its folder is."""

import importlib
import sys
import zipfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kwire_pipeline.engine.shipping import ship, write_zip

RATES = """
from pyspark.sql import functions as F
from shipped_lib.deep import names

@F.udf("string")
def word(number):
    return names.WORDS[number]

def clean(frame):
    return frame.select(word("id").alias("word"))
"""


def test_udf_of_a_transform_finds_its_modules_on_executors(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / "shipped_lib" / "deep"
    deep.mkdir(parents=True)
    (deep / "__init__.py").write_text("")
    (deep / "names.py").write_text("WORDS = ['zero', 'one']")
    (tmp_path / "shipped_rates.py").write_text(RATES)
    monkeypatch.syspath_prepend(tmp_path)
    ship(spark, None)
    ship(spark, "shipped_rates:clean")
    rows = importlib.import_module("shipped_rates").clean(spark.range(2)).collect()
    assert [row.word for row in rows] == ["zero", "one"]


def test_archive_has_a_package_for_each_folder(tmp_path: Path) -> None:
    source = tmp_path / "late.py"
    source.write_text("WORD = 'late'")
    path = str(tmp_path / "a.zip")
    write_zip({"packed_lib.deep.late": source}, path)
    names = zipfile.ZipFile(path).namelist()
    assert names == [
        "packed_lib/__init__.py",
        "packed_lib/deep/__init__.py",
        "packed_lib/deep/late.py",
    ]
    sys.path.insert(0, path)
    try:
        late = importlib.import_module("packed_lib.deep.late")
    finally:
        sys.path.remove(path)
    assert late.WORD == "late"

"""The parts of Spark that fit together, and one sentence for parts that do not."""

import os
import re
import tomllib
from pathlib import Path

import attrs
import pytest

from kwire_pipeline import versions
from kwire_pipeline.config.model import Pipeline, Spark, ValueFormat
from kwire_pipeline.config.values import Format, TableFormat
from kwire_pipeline.errors import Refusal
from kwire_pipeline.jars import file_name, ivy_module, jar_files
from kwire_pipeline.java import check_java
from tests.support.pipeline.orders import ORDERS

ROOT = Path(__file__).resolve().parents[2]
AVRO = attrs.evolve(ORDERS, value=ValueFormat(format=Format.AVRO, schema="{}"))
KAFKA = "org.apache.spark:spark-sql-kafka-0-10_2.13"


def orders(
    table_format: TableFormat = TableFormat.ICEBERG,
    *,
    packages: tuple[str, ...] = (),
    jars: tuple[str, ...] = (),
) -> Pipeline:
    table = attrs.evolve(ORDERS.table, format=table_format)
    return attrs.evolve(ORDERS, table=table, spark=Spark(packages=packages, jars=jars))


# Packages ------------------------------------------------------------------------------------
@pytest.mark.parametrize("pyspark", ["4.0.0", "4.0.2", "4.1.3", "4.2.0"])
def test_connector_has_the_version_of_pyspark(pyspark: str) -> None:
    names = versions.packages(pyspark, orders(TableFormat.DELTA))
    assert names[0] == f"{KAFKA}:{pyspark}"
    assert f"delta-spark_{pyspark[:3]}_2.13" in names[1]


def test_packages_follow_the_table_and_the_formats() -> None:
    assert versions.packages("4.0.0", orders(TableFormat.PARQUET)) == (f"{KAFKA}:4.0.0",)
    assert versions.packages("4.0.0", AVRO)[-1] == "org.apache.spark:spark-avro_2.13:4.0.0"


def test_a_users_package_is_added() -> None:
    names = versions.packages("4.0.0", orders(packages=("org.postgresql:postgresql:42.7.4",)))
    assert names[0].startswith(KAFKA)
    assert names[-1] == "org.postgresql:postgresql:42.7.4"


def test_jars_take_the_place_of_packages() -> None:
    assert versions.packages("4.0.0", orders(jars=("folder",))) == ()


@pytest.mark.parametrize(
    ("pyspark", "pipeline", "error"),
    [
        ("3.5.1", orders(), "pyspark 3.5.1 is not supported (4.0, 4.1 and 4.2 are): pip install"),
        ("4.3.0", orders(), "pyspark 4.3.0 is not supported"),
        ("4.2.0", orders(), "Iceberg has no runtime for pyspark 4.2.0: pip install 'pyspark<4.2'"),
        ("4.0.0", orders(packages=(f"{KAFKA}:3.5.1",)), "3.5.1 does not fit the installed pyspark"),
        (
            "4.0.0",
            orders(packages=("org.apache.spark:spark-avro_2.12:4.0.0",)),
            "is for Scala 2.12",
        ),
        ("4.0.0", orders(packages=("io.delta:delta-spark_4.1_2.13:4.4.0",)), "is for Spark 4.1"),
        ("4.0.0", orders(packages=("postgresql:42",)), "is not GROUP:ARTIFACT:VERSION"),
        ("4.1.3", AVRO, "Maven has no spark-avro for pyspark 4.1.3: pip install pyspark==4.0.0"),
        (
            "4.1.3",
            orders(jars=("d/spark-sql-kafka-0-10_2.13-4.0.0.jar",)),
            "does not fit the",
        ),
    ],
)
def test_a_mismatch_is_refused_in_one_line(pyspark: str, pipeline: Pipeline, error: str) -> None:
    with pytest.raises(Refusal, match=re.escape(error)) as raised:
        versions.packages(pyspark, pipeline)
    assert "\n" not in str(raised.value)


def test_pin_of_the_extra_is_a_checked_version() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]["pipeline"]
    assert f"pyspark=={versions.PIN}" in extra
    assert versions.PIN in versions.CHECKED


# Jars ----------------------------------------------------------------------------------------
def test_jars_are_complete_for_a_version_whose_token_provider_is_missing() -> None:
    names = versions.jars("4.1.3", orders())
    assert "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0" in names
    assert f"{KAFKA}:4.1.3" in names
    assert any("kafka-clients" in name for name in names)
    assert len(names) == len({name.rpartition(":")[0] for name in names})


def test_ivy_looks_up_nothing_but_the_list() -> None:
    text = ivy_module([f"{KAFKA}:4.0.0"])
    assert text.count("<dependency ") == text.count('transitive="false"') == 1
    assert file_name(f"{KAFKA}:4.0.0") == ("org.apache.spark_spark-sql-kafka-0-10_2.13-4.0.0.jar")


def test_folders_of_jars(tmp_path: Path) -> None:
    (tmp_path / "a.jar").touch()
    assert jar_files([str(tmp_path), "s3://b/c.jar"]) == (str(tmp_path / "a.jar"), "s3://b/c.jar")
    for name, problem in ((str(tmp_path / "b"), "is not there"), ("/proc/self/fd", "has no *.jar")):
        with pytest.raises(Refusal, match=re.escape(problem)):
            jar_files([name])


# Java ----------------------------------------------------------------------------------------
def java_home(folder: Path, *, release: str = "", script: str = "") -> dict[str, str]:
    """Make an installation of Java that only says its version."""
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    if release:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{release}"\n')
    return {"JAVA_HOME": str(folder)}


@pytest.mark.parametrize("version", ["17.0.15", "21.0.1", "22"])
def test_java_that_spark_runs_on(tmp_path: Path, version: str) -> None:
    assert check_java("4.0.0", java_home(tmp_path / "jdk", release=version)) == version


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "23.0.1", "25"])
def test_java_that_spark_does_not_run_on(tmp_path: Path, version: str) -> None:
    with pytest.raises(Refusal, match=f"runs on Java 17 to 22, and .* is Java {version}"):
        check_java("4.0.0", java_home(tmp_path / "jdk", release=version))


def test_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    environment = java_home(tmp_path / "jdk", script="echo 'openjdk version \"17.0.9\" x' >&2")
    assert check_java("4.1.3", environment) == "17.0.9"
    environment = java_home(tmp_path / "odd", script="echo hello")
    with pytest.raises(Refusal, match="does not report its version"):
        check_java("4.1.3", environment)


def test_java_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"there is no java on the PATH: install Java 17"):
        check_java("4.0.0", {"PATH": str(tmp_path)})
    with pytest.raises(Refusal, match="JAVA_HOME is"):
        check_java("4.0.0", {"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})

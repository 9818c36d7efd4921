"""The modules of the user's function, sent to the executors.

Python workers on other machines, and workers for a pipeline file in another folder, do not have the
file's folder on their module path, so they could not load a UDF from the function's module.
"""

import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from kwire_pipeline.engine.own_files import own_files

ZIP: Final = "kwire_transform.zip"


def ship(spark: SparkSession, transform: str | None) -> None:
    """Send the executors the module of a function, and the modules it imports from its folder."""
    if transform is None:
        return
    files = own_files(transform.partition(":")[0])
    if files:
        # Executors fetch the file when they need it; Spark deletes this folder when it ends.
        folder = tempfile.mkdtemp(dir=spark.sparkContext._temp_dir)
        path = os.path.join(folder, ZIP)
        write_zip(files, path)
        spark.sparkContext.addPyFile(path)


def write_zip(files: Mapping[str, Path], path: str) -> None:
    """Write modules, given by name, into an archive from which Python can import them."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in sorted({*files, *packages_of(files)}):
            place = name.replace(".", "/")
            source = files.get(name)
            if source is None:
                archive.writestr(f"{place}/__init__.py", "")
            elif source.name == "__init__.py":
                archive.write(source, f"{place}/__init__.py")
            else:
                archive.write(source, f"{place}.py")


def packages_of(names: Mapping[str, Path]) -> set[str]:
    """Return the packages that contain the modules."""
    parts = (name.split(".") for name in names)
    return {".".join(each[:end]) for each in parts for end in range(1, len(each))}

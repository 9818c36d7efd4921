"""A folder of any file system that Spark reaches: local, HDFS, an object store.

Rules of this file: a file is written whole and then moved to its name, so a reader sees all of it
or none of it; names are relative to the folder.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import attrs
from py4j.java_gateway import JavaObject, JVMView
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway

SCRATCH: Final = ".tmp"


def jvm_of(spark: SparkSession) -> JVMView:
    """Return the view of Spark's JVM."""
    return spark.sparkContext._jvm


def gateway_of(spark: SparkSession) -> "JavaGateway":
    """Return the gateway to Spark's JVM."""
    return spark.sparkContext._gateway


@attrs.frozen
class Folder:
    """A folder by its URL or path; it is made when the first file is written."""

    spark: SparkSession
    url: str

    def read(self, name: str) -> str | None:
        """Return a file's text, None if there is no such file."""
        files, path = self._at(name)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            text: str = jvm_of(self.spark).org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        return text

    def write(self, name: str, text: str) -> None:
        """Write a file in place of the one of that name."""
        self._move(self._scratch(name, text), name, replace=True)

    def create(self, name: str, text: str) -> bool:
        """Write a file unless there is one of that name; return whether it was written."""
        files, path = self._at(name)
        if files.exists(path):
            return False
        scratch = self._scratch(name, text)
        try:
            self._move(scratch, name, replace=False)
        except Py4JJavaError:
            if not files.exists(path):
                raise
            return False
        return True

    def move_to(self, target: "Folder") -> None:
        """Move this file or folder to another place of the same file system."""
        files, path = self._at("")
        place = target._at("")[1]
        files.mkdirs(place.getParent())
        self._rename(path, place, replace=False)

    def exists(self, name: str = "") -> bool:
        files, path = self._at(name)
        return bool(files.exists(path))

    def delete(self, name: str = "") -> None:
        """Delete a file, or a folder with all in it; nothing happens if there is none."""
        files, path = self._at(name)
        files.delete(path, True)

    def names(self, name: str = "") -> list[str]:
        """Return the sorted names of what is in the folder, without those that begin with a dot."""
        files, path = self._at(name)
        if not files.exists(path):
            return []
        names = [str(status.getPath().getName()) for status in files.listStatus(path)]
        return sorted(name for name in names if not name.startswith("."))

    def files(self) -> Iterator[tuple[str, int]]:
        """Yield the path below the folder and the size in bytes of all files in it."""
        files, root = self._at("")
        if not files.exists(root):
            return
        prefix = str(files.resolvePath(root).toString()).rstrip("/") + "/"
        listing = files.listFiles(root, True)
        while listing.hasNext():
            status = listing.next()
            yield str(status.getPath().toString()).removeprefix(prefix), int(status.getLen())

    def at(self, name: str) -> "Folder":
        """Return the folder of that name in this one."""
        return Folder(self.spark, f"{self.url.rstrip('/')}/{name}")

    def _scratch(self, name: str, text: str) -> str:
        scratch = f".{name}{SCRATCH}"
        files, path = self._at(scratch)
        stream = files.create(path, True)
        stream.write(text.encode())
        stream.close()
        return scratch

    def _move(self, name: str, target: str, *, replace: bool) -> None:
        self._rename(self._at(name)[1], self._at(target)[1], replace=replace)

    def _rename(self, path: JavaObject, target: JavaObject, *, replace: bool) -> None:
        options = getattr(jvm_of(self.spark).org.apache.hadoop.fs, "Options$Rename")
        chosen = gateway_of(self.spark).new_array(options, 1)
        chosen[0] = options.OVERWRITE if replace else options.NONE
        context = jvm_of(self.spark).org.apache.hadoop.fs.FileContext.getFileContext(
            path.toUri(), self._configuration()
        )
        context.rename(path, target, chosen)

    def _at(self, name: str) -> tuple[JavaObject, JavaObject]:
        text = f"{self.url.rstrip('/')}/{name}" if name else self.url
        path = jvm_of(self.spark).org.apache.hadoop.fs.Path(text)
        files = path.getFileSystem(self._configuration())
        return files, files.makeQualified(path)

    def _configuration(self) -> JavaObject:
        return self.spark._jsparkSession.sessionState().newHadoopConf()

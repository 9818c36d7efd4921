"""A folder in any file system that Spark can reach: local, HDFS, an object store.

Rules of this file: a file is written completely and then renamed, so a reader sees all of it or
nothing; names are relative to the folder. Local files use the raw local file system: Hadoop's
default one keeps a checksum beside each file and renames the two one after the other, so a crash in
between makes the file unreadable.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Final

import attrs
from py4j.java_gateway import JavaClass, JavaObject, JavaPackage, JVMView
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from kwire_pipeline.errors import Failure

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway

SCRATCH: Final = ".tmp"
LOCAL: Final = "file"
RAW_LOCAL_CONTEXT: Final = "org.apache.hadoop.fs.local.RawLocalFs"


def jvm_of(spark: SparkSession) -> JVMView:
    """Return the view of Spark's JVM."""
    return spark.sparkContext._jvm


def gateway_of(spark: SparkSession) -> "JavaGateway":
    """Return the gateway to Spark's JVM."""
    return spark.sparkContext._gateway


@attrs.frozen
class Hadoop:
    """Hadoop's classes, file systems and configuration, each looked up in the JVM once."""

    spark: SparkSession

    @cached_property
    def package(self) -> JavaPackage:
        return jvm_of(self.spark).org.apache.hadoop.fs

    @cached_property
    def path_class(self) -> JavaClass:
        return self.package.Path

    @cached_property
    def texts(self) -> JavaClass:
        return jvm_of(self.spark).org.apache.commons.io.IOUtils

    @cached_property
    def configuration(self) -> JavaObject:
        return self.spark._jsparkSession.sessionState().newHadoopConf()

    @cached_property
    def raw_local(self) -> JavaObject:
        files = self.package.RawLocalFileSystem()
        files.initialize(self.path_class("file:///").toUri(), self.configuration)
        return files


@attrs.frozen
class Folder:
    """A folder given by URL or path; it is created when the first file is written."""

    spark: SparkSession
    url: str
    _hadoop: Hadoop = attrs.field(
        default=attrs.Factory(lambda self: Hadoop(self.spark), takes_self=True),
        eq=False,
        repr=False,
    )

    def read(self, name: str) -> str | None:
        """Return a file's text; None if the file does not exist."""
        files, path = self._at(name)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            text: str = self._hadoop.texts.toString(stream, "UTF-8")
        finally:
            stream.close()
        return text

    def write(self, name: str, text: str) -> None:
        """Write a file, replacing any file of that name."""
        files, target = self._at(name)
        path = self._at(self._scratch(name, text))[1]
        if _is_local(target):
            # A single rename in the kernel; a file context would delete the target first.
            if not files.rename(path, target):
                raise Failure(f"{self.url}/{name} cannot be written")
        else:
            self._rename(path, target, replace=True)

    def create(self, name: str, text: str) -> bool:
        """Write a file unless one of that name exists; return whether it was written."""
        files, path = self._at(name)
        if files.exists(path):
            return False
        scratch = self._scratch(name, text)
        try:
            self._rename(self._at(scratch)[1], path, replace=False)
        except Py4JJavaError:
            if not files.exists(path):
                raise
            return False
        return True

    def move_to(self, target: "Folder") -> None:
        """Move this file or folder to another place in the same file system."""
        files, path = self._at("")
        place = target._at("")[1]
        files.mkdirs(place.getParent())
        self._rename(path, place, replace=False)

    def exists(self, name: str = "") -> bool:
        files, path = self._at(name)
        return bool(files.exists(path))

    def delete(self, name: str = "") -> None:
        """Delete a file, or a folder with its contents; do nothing if it does not exist."""
        files, path = self._at(name)
        files.delete(path, True)

    def delete_empty(self) -> None:
        """Delete the folder if it is empty."""
        files, path = self._at("")
        # Another process may be writing a file: then the folder stays.
        with suppress(Py4JJavaError):
            if not files.listStatus(path):
                files.delete(path, False)

    def names(self, name: str = "") -> list[str]:
        """Return the sorted names in the folder, without those that begin with a dot."""
        files, path = self._at(name)
        if not files.exists(path):
            return []
        names = [str(status.getPath().getName()) for status in files.listStatus(path)]
        return sorted(name for name in names if not name.startswith("."))

    def files(self) -> Iterator[tuple[str, int]]:
        """Yield the path below the folder and the size in bytes of all files, except dot files."""
        files, root = self._at("")
        if not files.exists(root):
            return
        prefix = str(files.resolvePath(root).toString()).rstrip("/") + "/"
        listing = files.listFiles(root, True)
        while listing.hasNext():
            status = listing.next()
            if str(status.getPath().getName()).startswith("."):
                continue
            yield str(status.getPath().toString()).removeprefix(prefix), int(status.getLen())

    def full_url(self) -> str:
        """Return the URL with its scheme; a relative path refers to this process's folder."""
        return str(self._at("")[1].toString())

    def at(self, name: str) -> "Folder":
        """Return the subfolder of that name."""
        return attrs.evolve(self, url=f"{self.url.rstrip('/')}/{name}")

    def _scratch(self, name: str, text: str) -> str:
        scratch = f".{name}{SCRATCH}"
        files, path = self._at(scratch)
        stream = files.create(path, True)
        stream.write(text.encode())
        stream.close()
        return scratch

    def _rename(self, path: JavaObject, target: JavaObject, *, replace: bool) -> None:
        options = getattr(self._hadoop.package, "Options$Rename")
        chosen = gateway_of(self.spark).new_array(options, 1)
        chosen[0] = options.OVERWRITE if replace else options.NONE
        configuration = self._hadoop.configuration
        if _is_local(path):
            configuration.set("fs.AbstractFileSystem.file.impl", RAW_LOCAL_CONTEXT)
        context = self._hadoop.package.FileContext.getFileContext(path.toUri(), configuration)
        context.rename(path, target, chosen)

    def _at(self, name: str) -> tuple[JavaObject, JavaObject]:
        text = f"{self.url.rstrip('/')}/{name}" if name else self.url
        path = self._hadoop.path_class(text)
        files = path.getFileSystem(self._hadoop.configuration)
        path = files.makeQualified(path)
        return (self._hadoop.raw_local if _is_local(path) else files), path


def _is_local(path: JavaObject) -> bool:
    return bool(path.toUri().getScheme() == LOCAL)

"""A folder in any file system that Spark can reach: local, HDFS, an object store.

Rules of this file: a reader always sees a complete file, old or new, even after a crash; names are
relative to the folder. Local files use the raw local file system: Hadoop's default one keeps a
checksum beside each file and renames the two one after the other, so a crash in between makes the
file unreadable.
"""

import datetime
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Final

import attrs
from py4j.java_gateway import JavaClass, JavaObject, JavaPackage, JVMView
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from kwire_pipeline.config.rules import ONE_PUT
from kwire_pipeline.engine.stores.s3 import S3Object, has_conditional_writes, is_s3
from kwire_pipeline.errors import Failure

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway

SCRATCH: Final = ".tmp"
"""The suffix of a file that is being written."""
WHOLE: Final = ".new"
"""The suffix of a whole file that is about to replace another one."""
LOCAL: Final = "file"
ONE_RENAME: Final = (LOCAL, "hdfs", "viewfs")
"""The schemes in which a rename replaces a file in one step; elsewhere Hadoop deletes it first."""
RAW_LOCAL_CONTEXT: Final = "org.apache.hadoop.fs.local.RawLocalFs"


def jvm_of(spark: SparkSession) -> JVMView:
    """Return the view of Spark's JVM."""
    return spark.sparkContext._jvm


def java_class(spark: SparkSession, name: str) -> JavaClass:
    """Return a class of the JVM by its full name, with one call instead of one for each part."""
    return getattr(jvm_of(spark), name)


def texts_of(spark: SparkSession, texts: JavaObject) -> dict[str, str]:
    """Return a Java map of texts, with a few calls.

    A loop over a Java collection takes a call for each element, and its end is an exception, for
    which pyspark makes a hundred calls.
    """
    mapper = java_class(spark, "com.fasterxml.jackson.databind.ObjectMapper")()
    return dict(json.loads(mapper.writeValueAsString(texts)))


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

    def rename(self, path: JavaObject, target: JavaObject, *, replace: bool) -> None:
        """Rename a file or folder; fail if the target exists, unless it is to be replaced."""
        if replace and _scheme(target) == LOCAL:
            # A single rename in the kernel; a file context would delete the target first.
            if not self.raw_local.rename(path, target):
                raise Failure(f"{target.toString()} cannot be written")
            return
        options = getattr(self.package, "Options$Rename")
        chosen = gateway_of(self.spark).new_array(options, 1)
        chosen[0] = options.OVERWRITE if replace else options.NONE
        if _scheme(path) == LOCAL:
            self.configuration.set("fs.AbstractFileSystem.file.impl", RAW_LOCAL_CONTEXT)
        context = self.package.FileContext.getFileContext(path.toUri(), self.configuration)
        context.rename(path, target, chosen)

    def publish(self, path: JavaObject, target: JavaObject) -> None:
        """Give a whole file another name; fail if that name exists, even if it appears just now.

        On a local disk, a rename without replacement first looks for the name and then renames,
        while a link is one step. A file system without links gets the rename.
        """
        if _scheme(target) == LOCAL:
            nio = jvm_of(self.spark).java.nio.file
            try:
                nio.Files.createLink(nio.Paths.get(target.toUri()), nio.Paths.get(path.toUri()))
            except Py4JJavaError:
                if self.raw_local.exists(target):
                    raise
            else:
                self.raw_local.delete(path, False)
                return
        self.rename(path, target, replace=False)


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
        text = self._text(name)
        if text is None and _deletes_first(self._at(name)[1]):
            # The file may be between its deletion and the rename of its replacement.
            text = self._text(_hidden_name(name, WHOLE))
            return self._text(name) if text is None else text
        return text

    def write(self, name: str, text: str) -> None:
        """Write a file, replacing any file of that name."""
        files, target = self._at(name)
        if _scheme(target) in ONE_PUT:
            self._put(name, text, overwrite=True)
            return
        with self._scratch(name, text) as source:
            if _deletes_first(target):
                whole = self._at(_hidden_name(name, WHOLE))[1]
                if files.exists(whole) and not files.exists(target):
                    # A run ended between the two steps below.
                    self._hadoop.rename(whole, target, replace=False)
                self._hadoop.rename(source, whole, replace=True)
                source = whole
            self._hadoop.rename(source, target, replace=True)

    def create(self, name: str, text: str) -> bool:
        """Write a file unless one of that name exists; return whether it was written.

        If two writers create the file at the same time, one of them does; on other object stores
        than S3 both may, and the last one wins.
        """
        files, path = self._at(name)
        if files.exists(path):
            return False
        if has_conditional_writes(files):
            return S3Object(jvm_of(self.spark), files, path).create(text)
        try:
            if _scheme(path) in ONE_PUT:
                self._put(name, text, overwrite=False)
                return self.read(name) == text
            with self._scratch(name, text) as source:
                self._hadoop.publish(source, path)
        except Py4JJavaError:
            if not files.exists(path):
                raise
            return False
        return True

    def swap(self, name: str, old: str, new: str) -> bool:
        """Replace a file whose text is ``old``; return whether it was replaced.

        If another process replaces the file at the same time, S3 refuses the second write.
        Elsewhere the last write wins.
        """
        files, path = self._at(name)
        if has_conditional_writes(files):
            return S3Object(jvm_of(self.spark), files, path).swap(old, new)
        if self.read(name) != old:
            return False
        self.write(name, new)
        return True

    def move_to(self, target: "Folder") -> None:
        """Move this file or folder to another place in the same file system."""
        files, path = self._at("")
        place = target._at("")[1]
        files.mkdirs(place.getParent())
        self._hadoop.rename(path, place, replace=False)

    def exists(self, name: str = "") -> bool:
        files, path = self._at(name)
        return bool(files.exists(path))

    def delete(self, name: str = "") -> None:
        """Delete a file, or a folder with its contents; do nothing if it does not exist."""
        files, path = self._at(name)
        files.delete(path, True)
        if name and _deletes_first(path):
            files.delete(self._at(_hidden_name(name, WHOLE))[1], False)

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

    def times(self, name: str = "") -> dict[str, datetime.datetime]:
        """Return when each file in the folder was written, without those that begin with a dot."""
        files, path = self._at(name)
        if not files.exists(path):
            return {}
        times = {
            str(status.getPath().getName()): int(status.getModificationTime()) / 1000
            for status in files.listStatus(path)
        }
        return {
            file: datetime.datetime.fromtimestamp(seconds, datetime.UTC)
            for file, seconds in times.items()
            if not file.startswith(".")
        }

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

    def _text(self, name: str) -> str | None:
        files, path = self._at(name)
        if is_s3(files):
            return S3Object(jvm_of(self.spark), files, path).read()
        if not files.exists(path):
            return None
        try:
            stream = files.open(path)
        except Py4JJavaError as error:
            if "FileNotFoundException" in str(error):
                return None
            raise
        try:
            text: str = self._hadoop.texts.toString(stream, "UTF-8")
        finally:
            stream.close()
        return text

    @contextmanager
    def _scratch(self, name: str, text: str) -> Iterator[JavaObject]:
        """Write a text to a file that no other writer uses, for a block that renames the file."""
        scratch = _hidden_name(name, f".{uuid.uuid4().hex}{SCRATCH}")
        files, path = self._at(scratch)
        try:
            self._put(scratch, text, overwrite=False)
            yield path
        except BaseException:
            with suppress(Py4JJavaError):
                files.delete(path, False)
            raise

    def _put(self, name: str, text: str, *, overwrite: bool) -> None:
        files, path = self._at(name)
        stream = files.create(path, overwrite)
        stream.write(text.encode())
        stream.close()

    def _at(self, name: str) -> tuple[JavaObject, JavaObject]:
        text = f"{self.url.rstrip('/')}/{name}" if name else self.url
        path = self._hadoop.path_class(text)
        files = path.getFileSystem(self._hadoop.configuration)
        path = files.makeQualified(path)
        return (self._hadoop.raw_local if _scheme(path) == LOCAL else files), path


def _scheme(path: JavaObject) -> str:
    return str(path.toUri().getScheme())


def _deletes_first(path: JavaObject) -> bool:
    """Return whether a rename that replaces a file first deletes the old file."""
    return _scheme(path) not in (*ONE_RENAME, *ONE_PUT)


def _hidden_name(name: str, suffix: str) -> str:
    """Return the name of a file beside another one; `names` and `files` leave such files out."""
    return f".{name}{suffix}"

"""Small objects in S3: read with one request, and replaced only if nobody has changed them since.

Rules of this file: requests go through the client of Hadoop's S3A file system, with its credentials
and encryption. S3A itself reads an object with two requests, and the second fails if the object was
replaced in between; it has no conditional writes before Hadoop 3.4.2, and Spark 4.0 comes with
3.4.1. The client repeats a write whose answer was lost, which S3 then refuses, so a refused write
counts as successful if the object has the written text.
"""

import re
from typing import Final

import attrs
from py4j.java_gateway import JavaObject, JVMView
from py4j.protocol import Py4JJavaError

from kwire_pipeline.errors import Refusal

S3A: Final = "org.apache.hadoop.fs.s3a.S3AFileSystem"
SWITCH: Final = "fs.s3a.create.conditional.enabled"
"""Hadoop's option that says whether the store supports conditional writes."""
STATUS: Final = re.compile(r"Status Code: (\d+)")
NO_BUCKET: Final = "NoSuchBucket"
MISSING: Final = 404
CONFLICTS: Final = (409, 412)
UNKNOWN: Final = 501


@attrs.frozen
class S3Object:
    """One object of a bucket."""

    jvm: JVMView
    files: JavaObject
    path: JavaObject

    def read(self) -> str | None:
        """Return the object's text; None if it does not exist."""
        current = self._get()
        return None if current is None else current[0]

    def create(self, text: str) -> bool:
        """Write the object unless it exists; return whether it was written."""
        return self._put(text, "If-None-Match", "*")

    def swap(self, old: str, new: str) -> bool:
        """Replace the object if its text is ``old``; return whether it was replaced."""
        current = self._get()
        return current is not None and current[0] == old and self._put(new, "If-Match", current[1])

    def _get(self) -> tuple[str, str] | None:
        """Return the text and the entity tag; None if the object does not exist."""
        builder = self.files.getRequestFactory().newGetObjectRequestBuilder(self._key())
        try:
            answer = self._client().getObjectAsBytes(builder.build())
        except Py4JJavaError as error:
            if status_of(error) == MISSING:
                return None
            raise
        return str(answer.asUtf8String()), str(answer.response().eTag())

    def _put(self, text: str, condition: str, value: str) -> bool:
        aws = self.jvm.software.amazon.awssdk
        data = text.encode()
        factory = self.files.getRequestFactory()
        builder = factory.newPutObjectRequestBuilder(self._key(), None, len(data), False)
        header = aws.awscore.AwsRequestOverrideConfiguration.builder().putHeader(condition, value)
        request = builder.overrideConfiguration(header.build()).build()
        try:
            self._client().putObject(request, aws.core.sync.RequestBody.fromBytes(data))
        except Py4JJavaError as error:
            status = status_of(error)
            if status == UNKNOWN:
                raise Refusal(
                    f"{self.path.toString()}: the object store lacks conditional writes, which "
                    f"keep two runs off one checkpoint: set spark.hadoop.{SWITCH} to false "
                    "in spark.conf if no two runs start at the same time"
                ) from None
            if status not in (*CONFLICTS, MISSING):
                raise
            current = self._get()
            return current is not None and current[0] == text
        return True

    def _client(self) -> JavaObject:
        return self.files.getS3AInternals().getAmazonS3Client("a conditional write")

    def _key(self) -> str:
        return str(self.files.pathToKey(self.path))


def is_s3(files: JavaObject) -> bool:
    """Return whether a file system is S3A."""
    return str(files.getClass().getName()) == S3A


def has_conditional_writes(files: JavaObject) -> bool:
    """Return whether a file system is S3A and its store is configured for conditional writes."""
    return is_s3(files) and bool(files.getConf().getBoolean(SWITCH, True))


def status_of(error: Py4JJavaError) -> int | None:
    """Return the HTTP status of an error about an object; None for any other error."""
    text = str(error)
    match = STATUS.search(text)
    return int(match[1]) if match and NO_BUCKET not in text else None

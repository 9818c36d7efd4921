"""An object store and a catalog on loopback, as processes that a test can stop, pause and kill."""

from __future__ import annotations

import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

import attrs

from compat_tests.harness.ports import new_ports
from compat_tests.harness.wait import eventually
from compat_tests.lake.install import catalog_command, ministack_python, versitygw

BUCKET = "lake"
USER, PASSWORD = "lake-user", "opensesame-of-the-lake"
REGION = "us-east-1"


class StoreKind(StrEnum):
    """The S3 servers of the tests."""

    MINISTACK = "ministack"
    VERSITYGW = "versitygw"


@attrs.define(eq=False)
class Server:
    """A server at a fixed address."""

    command: list[str]
    environment: dict[str, str]
    port: int
    log: Path
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        environment = {**os.environ, **self.environment}
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command, stdout=output, stderr=output, env=environment
            )
        eventually(self._answers, lambda: self.log.read_text(errors="replace")[-3000:])

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text(errors="replace")[-3000:]
        try:
            urllib.request.urlopen(f"{self.url}/v1/config", timeout=5).close()
        except urllib.error.HTTPError:
            return True  # An object store has no such page for strangers.
        except OSError:
            return False
        return True

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Let the server hang: it accepts connections, and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@attrs.frozen
class Lake:
    """A bucket, and a catalog whose tables are in it."""

    store: Server
    catalog: Server
    folder: Path
    """The folder of the bucket's objects."""

    def catalog_options(self) -> dict[str, str]:
        """Return the properties of a catalog that reaches the tables' files."""
        return {
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "client.region": REGION,
            "s3.endpoint": self.store.url,
            "s3.path-style-access": "true",
            "s3.access-key-id": USER,
            "s3.secret-access-key": PASSWORD,
        }

    def hadoop_options(self) -> dict[str, str]:
        """Return the options of Hadoop's S3A file system."""
        return {
            "fs.s3a.endpoint": self.store.url,
            "fs.s3a.endpoint.region": REGION,
            "fs.s3a.path.style.access": "true",
            "fs.s3a.access.key": USER,
            "fs.s3a.secret.key": PASSWORD,
        }


def environment_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that set the catalog's options."""
    names = {name: name.upper().replace("-", "__").replace(".", "_") for name in options}
    return {f"CATALOG_{names[name]}": text for name, text in options.items()}


def object_store(directory: Path, port: int, kind: StoreKind) -> Server:
    """Return an S3 server, not yet started, with one empty bucket."""
    bucket_folder(directory, kind).mkdir(parents=True)
    buckets, log = directory / "buckets", directory / "store.log"
    if kind is StoreKind.VERSITYGW:
        address = ["--port", f"127.0.0.1:{port}", "--quiet"]
        command = [str(versitygw()), *address, "posix", str(buckets)]
        return Server(command, {"ROOT_ACCESS_KEY": USER, "ROOT_SECRET_KEY": PASSWORD}, port, log)
    # It overlooks a stored bucket whose folder is empty.
    (bucket_folder(directory, kind) / "warehouse").mkdir()
    environment = {
        "AUTH": "true",
        "AWS_ACCESS_KEY_ID": USER,
        "AWS_SECRET_ACCESS_KEY": PASSWORD,
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "IOT_MTLS_ENABLED": "0",  # It would listen on another port.
        "LOG_LEVEL": "WARNING",
        "S3_DATA_DIR": str(buckets),
        "S3_PERSIST": "1",
        "SERVICES": "s3",
    }
    return Server([str(ministack_python()), "-m", "ministack.app"], environment, port, log)


def bucket_folder(directory: Path, kind: StoreKind) -> Path:
    """Return the folder in which a server keeps the objects of its bucket."""
    account = "000000000000" if kind is StoreKind.MINISTACK else "."
    return directory / "buckets" / account / BUCKET


@contextmanager
def running_lake(directory: Path, kind: StoreKind) -> Iterator[Lake]:
    """Run an S3 server with an empty bucket, and a REST catalog."""
    store_port, catalog_port = new_ports(2)
    store = object_store(directory, store_port, kind)
    catalog = Server(catalog_command(), {}, catalog_port, directory / "catalog.log")
    lake = Lake(store, catalog, bucket_folder(directory, kind))
    catalog.environment = environment_of(
        {
            **lake.catalog_options(),
            "rest.port": str(catalog_port),
            "uri": f"jdbc:sqlite:{directory}/catalog.db",
            "warehouse": f"s3://{BUCKET}/warehouse",
        }
    )
    try:
        store.start()
        catalog.start()
        yield lake
    finally:
        catalog.kill()
        store.kill()

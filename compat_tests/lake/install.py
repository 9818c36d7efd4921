"""The programs of a lake on this machine, at fixed versions, each installed once into the cache.

Two S3 servers: one from PyPI, for most tests, and one built from its Go module, which takes ten
minutes of processor time; Iceberg's own REST catalog, from Maven; and two readers that know nothing
of Spark, PyIceberg and deltalake. What comes from PyPI has an environment of its own. Rules:
processes that install the same program at the same time wait for each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from compat_tests.harness.suite import cache
from compat_tests.java_old.jars import jars, java

VERSITYGW: Final = ("github.com/versity/versitygw/cmd/versitygw", "v1.8.0")
"""A server that keeps a bucket as a folder of files, and knows conditional writes."""
MINISTACK: Final = (
    "ministack==1.5.33",
    "defusedxml==0.7.1",
    "hypercorn==0.18.0",
    "jsonata-python==0.7.1",
    "pyyaml==6.0.4",
)
"""A server that handles one request at a time, so that conditional writes are atomic."""
ICEBERG: Final = "1.11.0"
JETTY: Final = "12.1.5"
HADOOP: Final = "3.4.1"
"""The version of Hadoop that the pyspark of these tests has."""
CATALOG: Final = (
    f"org.apache.iceberg:iceberg-open-api:{ICEBERG}:test-fixtures",
    f"org.apache.iceberg:iceberg-core:{ICEBERG}",
    f"org.apache.iceberg:iceberg-core:{ICEBERG}:tests",
    f"org.apache.iceberg:iceberg-aws:{ICEBERG}",
    f"org.apache.iceberg:iceberg-aws-bundle:{ICEBERG}",
    f"org.apache.hadoop:hadoop-client-api:{HADOOP}",
    f"org.apache.hadoop:hadoop-client-runtime:{HADOOP}",
    f"org.eclipse.jetty.ee10:jetty-ee10-servlet:{JETTY}",
    f"org.eclipse.jetty.compression:jetty-compression-server:{JETTY}",
    f"org.eclipse.jetty.compression:jetty-compression-gzip:{JETTY}",
    "org.xerial:sqlite-jdbc:3.50.3.0",
)
READERS: Final = ("pyiceberg[pyarrow,sql-sqlite]==0.12.0", "deltalake==1.6.6", "pyarrow==26.0.1")


def reason_to_skip() -> str | None:
    """Return why versitygw cannot be installed here; None if it can."""
    return None if shutil.which("go") else "go is missing (1.25 or newer, from https://go.dev)"


@contextmanager
def installing(name: str) -> Iterator[Path]:
    """Yield the folder of a program while no other process installs it."""
    folder = cache("lake", name)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def versitygw() -> Path:
    """Return the program of versitygw."""
    module, version = VERSITYGW
    with installing(f"versitygw-{version}") as folder:
        program = folder / "versitygw"
        if not program.exists():
            environment = {**os.environ, "GOBIN": str(folder)}
            subprocess.run(["go", "install", f"{module}@{version}"], env=environment, check=True)
    return program


def catalog_command() -> list[str]:
    """Return the command line of Iceberg's REST catalog, which environment variables configure."""
    name = f"iceberg-rest-{ICEBERG}"
    with installing(name):
        folder = jars(name, CATALOG)
    return java(f"{folder}/*", "org.apache.iceberg.rest.RESTCatalogServer")


def ministack_python() -> Path:
    """Return a Python that has ministack."""
    return python_with("ministack", MINISTACK)


def readers_python() -> Path:
    """Return a Python that has PyIceberg and deltalake."""
    return python_with("readers", READERS)


def python_with(name: str, packages: Sequence[str]) -> Path:
    """Return the Python of an environment that has these packages."""
    digest = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:16]
    with installing(f"{name}-{digest}") as folder:
        python = folder / "venv" / "bin" / "python"
        if not (folder / "ok").exists():
            make = [sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder / "venv")]
            subprocess.run(make, check=True)
            pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(python), "install"]
            subprocess.run([*pip, *packages], check=True)
            (folder / "ok").touch()
    return python

"""A pipeline into an object store, in which driver, broker, store and catalog are killed.

    python -m compat_tests.lake.trial [--format iceberg|delta] [--broker kwire|kafka] [--seed N]
        [--records N] [--kills N] [--directory DIR]

The trial of `compat_tests/pipeline/kills.py` with the table and the checkpoint in an S3 server.
Half of the kills are those of the store and of the catalog, which come back a few seconds later. In
the end PyIceberg or deltalake reads exactly the committed records, each once, and no output of the
pipeline has the store's password.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import attrs
import yaml

from compat_tests.harness.spark import LEFT_OUT, S3
from compat_tests.lake.scene import CATALOG, read_apart
from compat_tests.lake.servers import BUCKET, PASSWORD, Lake, StoreKind, running_lake
from compat_tests.pipeline.command import command, run
from compat_tests.pipeline.kills import BATCH_OFFSETS, TOPIC, Trial, run_trial
from examples.orders.events import SCHEMA
from kwire_pipeline.config.load import load
from kwire_pipeline.config.values import TableFormat

RECORDS: Final = 300_000
KILLS: Final = 8
VARIABLE: Final = "LAKE_PASSWORD"
AWAY_SECONDS: Final = 5
"""The time in which the store, or the catalog, is down."""


@attrs.define(eq=False)
class LakeTrial(Trial):
    """A trial whose table and checkpoint are in a lake."""

    lake: Lake = attrs.field(kw_only=True)
    format: TableFormat = attrs.field(kw_only=True)

    @property
    def files(self) -> Path:
        return self.lake.folder

    def text(self, letters: str) -> str:
        assert letters == "table"
        return text_of(self.lake, self.cluster.bootstrap, self.format, self.folder)

    def kinds_of_kill(self) -> list[Callable[[], None]]:
        servers = [self.kill_store, self.kill_catalog]
        if self.format is not TableFormat.ICEBERG:
            servers = [self.kill_store] * 2
        return [self.kill_driver, servers[0], self.kill_broker, servers[1]]

    def kill_store(self) -> None:
        self.lake.store.kill()
        self.note("store killed")
        time.sleep(AWAY_SECONDS)
        self.lake.store.start()

    def kill_catalog(self) -> None:
        self.lake.catalog.kill()
        self.note("catalog killed")
        time.sleep(AWAY_SECONDS)
        self.lake.catalog.start()

    def tables(self) -> dict[str, Any]:
        """Return what PyIceberg or deltalake reads; assert that no output has the password."""
        plan = self.folder / "plan"
        assert run(command("plan", self.file), plan) == 0, plan.read_text()
        assert "***" in plan.read_text()
        for path in (self.log, plan, *self.folder.glob("events/**/*")):
            assert path.is_dir() or PASSWORD not in path.read_text(errors="replace"), path
        pipeline = load(str(self.file), [], os.environ)
        assert pipeline.dead_letters.table is not None
        read = partial(read_apart, self.lake, pipeline.table)
        return {
            "rows": read(pipeline.table.name, ["kafka_partition", "kafka_offset", "order_id"]),
            "letters": read(pipeline.dead_letters.table, ["partition", "offset"]),
            "copies": 0,
        }


def text_of(lake: Lake, bootstrap: str, kind: TableFormat, folder: Path) -> str:
    """Return the file of a pipeline that writes to the lake, as a user writes it."""
    secret = f"${{{VARIABLE}}}"
    options = {
        key: secret if text == PASSWORD else text for key, text in lake.catalog_options().items()
    }
    hadoop = {
        f"spark.hadoop.{key}": secret if text == PASSWORD else text
        for key, text in lake.hadoop_options().items()
    }
    table = {"format": kind.value, "name": "shop.orders", "partition_by": "days(ordered_at)"}
    if kind is TableFormat.ICEBERG:
        catalog = {"name": CATALOG, "type": "rest", "uri": lake.catalog.url, "options": options}
        section: dict[str, object] = {**table, "catalog": catalog}
    else:
        section = {**table, "warehouse": f"s3a://{BUCKET}/tables"}
    events = folder / "events"
    events.mkdir(exist_ok=True)
    conf = {
        **hadoop,
        "spark.jars.excludes": LEFT_OUT,
        "spark.driver.memory": "1g",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
    }
    text: str = yaml.safe_dump(
        {
            "name": "orders",
            "source": {"bootstrap": bootstrap, "topics": [TOPIC]},
            "value": {"format": "json", "schema": SCHEMA},
            "table": section,
            "dead_letters": {"table": "shop.dead"},
            "checkpoint": f"s3a://{BUCKET}/checkpoint",
            "limits": {"max_offsets_per_trigger": str(BATCH_OFFSETS)},
            "spark": {"master": "local[2]", "packages": list(S3), "conf": conf},
        },
        sort_keys=False,
    )
    return text


def run_lake_trial(
    folder: Path, kind: str, table_format: TableFormat, *, seed: int, records: int, kills: int
) -> Sequence[str]:
    """Run a trial on one broker and check its tables; return what happened."""
    os.environ[VARIABLE] = PASSWORD
    with running_lake(folder, StoreKind.VERSITYGW) as lake:
        return run_trial(
            folder,
            kind,
            nodes=1,
            letters="table",
            seed=seed,
            records=records,
            kills=kills,
            make=partial(LakeTrial, lake=lake, format=table_format),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--format", type=TableFormat, default=TableFormat.ICEBERG)
    parser.add_argument("--broker", default="kwire", choices=["kwire", "kafka"])
    parser.add_argument("--seed", type=int, default=Random().randrange(1 << 32))
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    folder = arguments.directory or Path(tempfile.mkdtemp(prefix="kwire-lake-"))
    print(f"seed {arguments.seed}, in {folder}", flush=True)
    run_lake_trial(
        folder,
        arguments.broker,
        arguments.format,
        seed=arguments.seed,
        records=arguments.records,
        kills=arguments.kills,
    )


if __name__ == "__main__":
    main()

"""A pipeline into an object store, in which driver, broker, store and catalog are killed.

    python -m compat_tests.lake.trial [--format iceberg|delta] [--broker kwire|kafka] [--seed N]
        [--records N] [--kills N] [--directory DIR]

The trial of `compat_tests/pipeline/kills.py` with the table and the checkpoint in an S3 server.
Half of the kills are those of the store and of the catalog, which come back a few seconds later.
Then the driver is paused in a commit, and wakes after another one, as on another host, has taken
over; an operator rolls both tables back, with PyIceberg or deltalake; and records are deleted from
the topic before a run has read them. A run that cannot go on says so in one line. After each part,
PyIceberg or deltalake reads exactly the committed records, each once, and no output of the pipeline
has the store's password.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import attrs
import yaml
from kafka import KafkaAdminClient, TopicPartition

from compat_tests.harness.spark import LEFT_OUT, S3
from compat_tests.harness.wait import eventually
from compat_tests.lake.scene import CATALOG, read_apart, roll_back_apart
from compat_tests.lake.servers import BUCKET, PASSWORD, Lake, StoreKind, running_lake
from compat_tests.pipeline.command import command, run, start
from compat_tests.pipeline.kills import (
    BATCH_OFFSETS,
    LARGER,
    PARTITIONS,
    PROGRESS_SECONDS,
    TOPIC,
    Trial,
    Writer,
    read_committed,
    run_trial,
)
from examples.orders.events import SCHEMA
from kwire_pipeline.config.load import load
from kwire_pipeline.config.values import TableFormat

RECORDS: Final = 300_000
KILLS: Final = 8
VARIABLE: Final = "LAKE_PASSWORD"
AWAY_SECONDS: Final = 5
"""The time in which the store, or the catalog, is down."""
UNREAD: Final = 6000
"""The records that are written while no run reads; half of them are deleted."""
OVERTAKEN: Final = "another run"
"""The words with which a driver ends that another one has replaced."""
ELSEWHERE: Final = """\
import runpy, socket
socket.gethostname = lambda: "elsewhere"
runpy.run_module("kwire_pipeline", run_name="__main__", alter_sys=True)
"""
"""The pipeline's command on what its lease takes for another host."""


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

    def finish(self) -> None:
        """Let a paused driver wake, end the run, and undo its newest commits."""
        self.pause_in_commit()
        super().finish()
        self.roll_back()

    def pause_in_commit(self) -> None:
        """Pause the driver in a commit, until another one has written that batch and more."""
        assert self.driver is not None
        paused, former = self.driver, self.parts_of_commits()

        def is_committing() -> bool:
            assert paused.poll() is None, self.tail()
            return not self.parts_of_commits() <= former

        eventually(is_committing, self.tail, PROGRESS_SECONDS)
        os.killpg(paused.pid, signal.SIGSTOP)
        self.note("driver paused in a commit")
        self.start_elsewhere()
        self.wait_batches(2)
        os.killpg(paused.pid, signal.SIGCONT)
        assert paused.wait(PROGRESS_SECONDS) == 1, self.tail()
        reasons = [line for line in self.log.read_text().splitlines() if OVERTAKEN in line]
        assert reasons, self.tail()
        self.note(f"the paused driver woke and ended: {reasons[-1]}")

    def parts_of_commits(self) -> set[Path]:
        """Return the files that a writer of the table makes right before it commits."""
        names = "metadata/*.avro" if self.format is TableFormat.ICEBERG else "**/*.parquet"
        return set(self.lake.folder.glob(f"*/shop/orders/{names}"))

    def start_elsewhere(self) -> None:
        """Start a driver that cannot see whether the one before it is alive."""
        run_it = [sys.executable, "-c", ELSEWHERE, "run", str(self.file), "--trigger", "1 second"]
        self.driver = start(run_it, self.log)

    def roll_back(self) -> None:
        """Undo the newest commit of both tables; a run is refused until it adopts them."""
        pipeline = load(str(self.file), [], os.environ)
        assert pipeline.dead_letters.table is not None
        for name in (pipeline.table.name, pipeline.dead_letters.table):
            roll_back_apart(self.lake, pipeline.table, name)
        reason = self.refusal("no longer ha")
        self.note(f"tables rolled back: {reason}")
        assert run(command("run", self.file, "--adopt", *LARGER), self.log) == 0, self.tail()

    def refusal(self, words: str) -> str:
        """Assert that a run is refused in one line that has these words; return the line."""
        log = self.folder / "refused.log"
        log.unlink(missing_ok=True)
        assert run(command("run", self.file), log) == 2, log.read_text()[-3000:]
        last = log.read_text().splitlines()[-1]
        assert words in last, last
        return last

    def operate(self, writer: Writer) -> None:
        """Delete records that no run has read, as retention does."""
        before = read_committed(self.cluster.bootstrap)
        ends = [0] * PARTITIONS
        for partition, offset in before:
            ends[partition] = max(ends[partition], offset + 1)
        writer.limit += UNREAD
        writer.wait()
        starts = {p: end + UNREAD // 2 // PARTITIONS for p, end in enumerate(ends)}
        admin = KafkaAdminClient(bootstrap_servers=self.cluster.bootstrap)
        admin.delete_records({TopicPartition(TOPIC, p): start for p, start in starts.items()})
        admin.close()
        reason = self.refusal("records were removed")
        self.check_tables(before)
        self.note(f"unread records deleted: {reason}")
        flags = ("--source.fail_on_data_loss", "false")
        assert run(command("run", self.file, *flags), self.log) == 0, self.tail()
        rest = read_committed(self.cluster.bootstrap)
        assert min(starts[p] <= offset for p, offset in rest)
        self.check_verified(rest)
        self.check_tables(before | rest)

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

"""The files of many tables: which topics have a checkpoint, and what the last run left."""

from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from kwire_pipeline.config.document import read_document
from kwire_pipeline.config.template import Template
from kwire_pipeline.engine import identity, lease
from kwire_pipeline.errors import EXIT_REFUSAL
from kwire_pipeline.many import engine
from kwire_pipeline.many.notes import PROBLEMS, written_topics
from kwire_pipeline.many.state import Problem
from tests.support.pipeline.files import Files
from tests.support.pipeline.many import MANY


def test_topic_of_which_only_a_lease_was_written_has_no_checkpoint() -> None:
    """It may still be one that appeared later, and be read from its first record."""
    files = Files()
    files.write(f"tables/a/{identity.FILE}", "{}")
    files.write(f"tables/a/{lease.FILE}", "{}")
    files.write(f"tables/b/{lease.FILE}", "{}")
    assert written_topics(files) == {"a"}


class Session:
    """A session that does nothing."""

    def newSession(self) -> "Session":
        return self


def test_stored_problems_have_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files()
    fakes: dict[str, Any] = {
        "Folder": lambda *_: files,
        "Cluster": lambda *_: None,
        "set_warehouse": lambda *_: None,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(engine, name, fake)
    registry = "registry: {url: 'http://r', username: u, password: '${P}'}\n"
    value = '{format: avro-registry, schema: "${S}"}'
    schema = '{"type": "record", "name": "orders", "fields": []}'
    text = MANY.replace("{format: string}", value) + registry
    document = read_document("raw.yaml", text, {"P": "hunter2", "S": schema})
    many = Template.of(document, [], {})
    spark_engine = engine.SparkEngine(cast(SparkSession, Session()), many)
    problem = Problem("http://u:hunter2@r does not answer", EXIT_REFUSAL)
    assert spark_engine.note_problems({"a": ("raw.a", problem)})
    assert "hunter2" not in files.texts[PROBLEMS]
    (stored,) = spark_engine.problems().values()
    assert stored == ("raw.a", Problem("http://u:***@r does not answer", EXIT_REFUSAL))

"""Dead letters become rows only if a run would accept them as rows."""

import pytest
from pyspark.sql import SparkSession

from kwire_pipeline.commands.replay import check_rows
from kwire_pipeline.config.values import Action, Format
from kwire_pipeline.engine.schema import parse_ddl
from kwire_pipeline.errors import Refusal
from kwire_pipeline.records.frames import Shape, classify
from tests.support.pipeline.frames import topic


def test_letters_that_an_expectation_with_fail_rejects_are_not_moved(spark: SparkSession) -> None:
    """A letter that stays a letter is not judged; without such an expectation, none is."""
    spark.conf.set("spark.sql.ansi.enabled", "false")
    values = [b'{"id": 1}', b'{"id": -1}', b'{"id": -9}', b"{"]
    for action, others in ((Action.FAIL, "id > -5"), (Action.WARN, "true")):
        shape = Shape(
            format=Format.JSON,
            schema=parse_ddl("id BIGINT", "value.schema"),
            expectations={"positive": ("id > 0", action), "near": (others, Action.DEAD_LETTER)},
        )
        batch = classify(topic(spark, [*values]), shape)
        if action is Action.FAIL:
            with pytest.raises(Refusal, match="1 rows do not meet the expectation positive"):
                check_rows(batch, shape)
        else:
            check_rows(batch, shape)

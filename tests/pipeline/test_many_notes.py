"""The files of many tables: which topics have a checkpoint, and what the last run left."""

from kwire_pipeline.engine import identity, lease
from kwire_pipeline.many.notes import written_topics
from tests.support.pipeline.files import Files


def test_topic_of_which_only_a_lease_was_written_has_no_checkpoint() -> None:
    """It may still be one that appeared later, and be read from its first record."""
    files = Files()
    files.write(f"tables/a/{identity.FILE}", "{}")
    files.write(f"tables/a/{lease.FILE}", "{}")
    files.write(f"tables/b/{lease.FILE}", "{}")
    assert written_topics(files) == {"a"}

"""A batch that a leader accepts can be read by an independent client's decoder."""

import pytest

from tests.support.records import damaged


@pytest.mark.filterwarnings("ignore:.*_text is deprecated")  # in kafka-python
def test_accepted_batches_are_readable():
    accepted_count = sum(map(damaged.check, range(1000)))
    assert 20 < accepted_count < 500

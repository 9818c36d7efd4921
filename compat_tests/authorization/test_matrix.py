"""Every API with and without its permissions, compared with the recorded answers of Kafka.

It is long because `tests/server/test_authorization.py` sends the same requests to a live node of
kwire; here Apache Kafka answers them too.
"""

from __future__ import annotations

import json

import pytest

from compat_tests.authorization.record import RECORDED, matrix_of
from compat_tests.harness.broker import Broker
from tests.support.authorization.matrix import DIFFERENT, SETTINGS

pytestmark = [pytest.mark.single, pytest.mark.long]
BROKER_SETTINGS = SETTINGS


def test_answers_with_and_without_permissions(own_broker: Broker) -> None:
    answers = matrix_of(own_broker).answers()
    different = {} if own_broker.kind == "kafka" else DIFFERENT
    for case, by_attempt in json.loads(RECORDED.read_text()).items():
        for lacks, recorded in by_attempt.items():
            if (case, lacks) not in different:
                assert answers[case][lacks] == recorded, (case, lacks)

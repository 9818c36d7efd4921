"""Settings of a subscription to client metrics, with the answers of Apache Kafka 4.3.1."""

from typing import Any

import pytest

from kwire.configs.client_metrics import check_client_metrics
from kwire.configs.declare import ConfigError
from kwire.errors import InvalidRequest

PATTERN = "Illegal client matching pattern: "
INTERVAL = "interval must be between 100 and 3600000"


@pytest.mark.parametrize(
    ("name", "text", "error", "words"),
    [
        ("match", "a=b", ConfigError, f"{PATTERN}a=b"),
        ("match", "client_id", ConfigError, f"{PATTERN}client_id"),
        ("match", "client_id=", ConfigError, f"{PATTERN}client_id="),
        ("match", "client_id=a=b", ConfigError, f"{PATTERN}client_id=a=b"),
        ("match", "client_id=[", ConfigError, PATTERN),
        ("match", ",", ConfigError, "Configuration 'match' values must not be empty."),
        ("metrics", "a,,b", ConfigError, "Configuration 'metrics' values must not be empty."),
        ("interval.ms", "99", InvalidRequest, f"Invalid value 99 for interval.ms, {INTERVAL}"),
        ("interval.ms", "3600001", InvalidRequest, INTERVAL),
        ("interval.ms", "x", ConfigError, "Not a number of type INT"),
        ("foo", "1", InvalidRequest, "Unknown client metrics configuration: foo"),
    ],
)
def test_invalid_settings_are_rejected(name: str, text: str, error: Any, words: str) -> None:
    with pytest.raises(error) as raised:
        check_client_metrics({name: text})
    assert words in str(raised.value.text if error is InvalidRequest else raised.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("match", " client_id = a.* "),
        ("match", "client_id=a="),
        ("match", "client_id=a,client_id=b"),
        ("match", "client_source_port=1.*,client_software_name=b"),
        ("match", ""),
        ("metrics", ""),
        ("metrics", "a,a"),
        ("metrics", "*,b"),
        ("interval.ms", "100"),
        ("interval.ms", "3600000"),
    ],
)
def test_valid_settings_are_accepted(name: str, text: str) -> None:
    check_client_metrics({name: text})

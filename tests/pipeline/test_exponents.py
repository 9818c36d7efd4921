"""A number with a huge exponent is found where a DECIMAL would be made of it, and only there."""

import re

import pytest
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from kwire_pipeline.records import exponents

ORDER = StructType(
    [
        StructField("größe", DecimalType(10, 2)),
        StructField("hash", StringType()),
        StructField("part", StructType([StructField("price", DecimalType(10, 2))])),
    ]
)
LISTS = [ArrayType(DecimalType(10, 2)), MapType(StringType(), DecimalType(10, 2))]


def is_huge(text: str, schema: StructType = ORDER) -> bool:
    """Search a text as Spark does."""
    if not re.search(exponents.SUSPECT, text):
        return False
    bare = re.sub(exponents.STRING, '""', re.sub(exponents.ESCAPED, "", text))
    return any(
        re.search(pattern, searched)
        for pattern, searched in ((exponents.BARE, bare), (exponents.quoted_pattern(schema), text))
    )


@pytest.mark.parametrize(
    "text",
    [
        '{"hash": "sha256:4e1234aa"}',
        '{"hash": "urn:uuid:4e123456-0000"}',
        '{"hash": "1,2e99999"}',
        '{"hash": "[1e99999]"}',
        r'{"hash": "a\":1e99999"}',
        r'{"hash": "a\\", "größe": 1, "more": ":1e99999"}',
        '{"hash": "4e12345"}',
        """{'hash': ':4e12345"'}""",
        r'{"größe": 1, "hash": "\u003c4e12345"}',
        '{"größe": "1e2"}',
        '{"größe": "1e0000002"}',
        '{"größe": 1e0000002}',
    ],
)
def test_text_with_the_same_characters_is_parsed(text: str) -> None:
    assert not is_huge(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"größe": 1e600000000}',
        '{"größe": -1.5E-600000000}',
        '{"größe": "1e600000000"}',
        '{"größe": "-1,000.5E+600000000", "größe": "1"}',
        '{"größe": "1e6,0,0,0"}',
        '{"größe": "1e\u0666\u0660\u0660\u0660"}',
        r'{"gr\u00F6\u00dfe": "1e6000"}',
        r'{"größe": "1\u0065600000000"}',
        r'{"größe": "1e\u0036\u0030\u0030\u0030"}',
        '{"part": {"price": "1e6000"}}',
        "{'part': {'price' : '1e6000'}}",
        """{'hash': '"', "größe": 1e6000, 'more': '"'}""",
        '{"größe": 1e6000, "hash": "',
    ],
)
def test_huge_number_is_not_parsed(text: str) -> None:
    assert is_huge(text)


@pytest.mark.parametrize("kind", LISTS)
def test_huge_number_in_a_list_or_map_is_not_parsed(kind: ArrayType | MapType) -> None:
    schema = StructType([StructField("all", kind)])
    assert is_huge('{"all": [1, "1e6000"]}', schema)
    assert is_huge('{"all": {"a": "1e6000"}}', schema)
    assert not is_huge('{"all": [], "hash": "sha256:4e1234aa"}', schema)

"""Messages that Kafka's classes encoded are decoded to their JSON and encoded to the same bytes."""

from typing import Any, get_args

import pytest

from kwire.codec.compile import decoder, decoder_in_steps, encode, encoder_in_steps
from kwire.codec.messages.metadata_records import MetadataRecord
from kwire.codec.schema import spec_of
from kwire.drive import run_steps
from tests.support.codec.message_json import from_json, to_json
from tests.support.codec.vectors import by_message, check_count, classes, lines

Lines = list[dict[str, Any]]


@pytest.mark.parametrize(("name", "count"), [("messages", 6730), ("messages-4.4", 185)])
def test_all_message_vectors_are_present(name: str, count: int):
    check_count(name, count)


GROUPS = [pytest.param(group, id=name) for name, group in by_message("messages", "messages-4.4")]


@pytest.mark.parametrize("group", GROUPS)
def test_message_is_decoded_and_encoded_as_kafkas(group: Lines):
    for line in group:
        cls, version, wire = classes()[line["name"]], line["version"], bytes.fromhex(line["hex"])
        message, end = decoder(cls, version)(wire, 0)
        assert end == len(wire), line["id"]
        assert to_json(message, version) == line["json"], line["id"]
        assert encode(message, version) == wire, line["id"]
        built = from_json(cls, line["json"], version)
        assert built == message, line["id"]
        assert encode(built, version) == wire, line["id"]


def test_large_message_is_decoded_and_encoded_in_steps_as_at_once():
    for line in lines("messages")[::7]:
        cls, version, wire = classes()[line["name"]], line["version"], bytes.fromhex(line["hex"])
        message, end = run_steps(decoder_in_steps(cls, version)(wire, 0))
        assert end == len(wire), line["id"]
        assert message == decoder(cls, version)(wire, 0)[0], line["id"]
        parts: list[Any] = []
        run_steps(encoder_in_steps(cls, version)(message, parts))
        assert b"".join(parts) == wire, line["id"]


def test_message_is_decoded_in_the_middle_of_a_frame():
    for line in lines("messages")[::37]:
        cls, wire = classes()[line["name"]], bytes.fromhex(line["hex"])
        frame = memoryview(bytearray(b"\xff" * 7 + wire + b"\xff" * 3))
        message, end = decoder(cls, line["version"])(frame, 7)
        assert end == 7 + len(wire), line["id"]
        assert to_json(message, line["version"]) == line["json"], line["id"]


def test_record_types_are_kafkas():
    for line in lines("messages"):
        if "record_type" in line:
            spec = spec_of(classes()[line["name"]])
            assert spec.record_type == line["record_type"], line["id"]


def test_metadata_record_is_any_class_of_the_metadata_log():
    records = [cls for cls in classes().values() if cls.__module__.endswith(".metadata_records")]
    assert set(get_args(MetadataRecord)) == set(records)

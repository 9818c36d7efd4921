"""The schema registry for tests, over HTTP as the serializers of Kafka's clients ask it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from kwire.testing import BrokerError, SchemaRegistry

ORDER: Final = '{"type":"record","name":"Order","fields":[{"name":"id","type":"string"}]}'
WITH_PRICE: Final = ORDER.replace("]", ',{"name":"price","type":"int"}]')
WITH_DEFAULT: Final = ORDER.replace("]", ',{"name":"price","type":"int","default":0}]')


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as registry:
        yield registry


def call(registry: SchemaRegistry, method: str, path: str, **body: Any) -> tuple[int, Any]:
    """Return the status and the body of an answer."""
    data = json.dumps(body).encode() if body else None
    request = Request(f"{registry.url}{path}", data, method=method)
    try:
        with urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def register(registry: SchemaRegistry, subject: str, schema: str, **more: Any) -> tuple[int, Any]:
    """Register a schema; return the status, and the id or the error code."""
    path = f"/subjects/{subject}/versions"
    status, body = call(registry, "POST", path, schema=schema, **more)
    return status, body["id"] if status == 200 else body["error_code"]


def test_a_schema_has_one_id_in_all_subjects_and_a_version_in_each(
    registry: SchemaRegistry,
) -> None:
    assert register(registry, "orders-value", ORDER) == (200, 1)
    assert register(registry, "customers-value", '"string"') == (200, 2)
    assert register(registry, "returns-value", ORDER.replace(",", ", ")) == (200, 1)
    assert register(registry, "orders-value", ORDER) == (200, 1)
    assert call(registry, "GET", "/subjects") == (
        200,
        ["orders-value", "customers-value", "returns-value"],
    )
    assert call(registry, "GET", "/schemas/ids/1/versions") == (
        200,
        [{"subject": "orders-value", "version": 1}, {"subject": "returns-value", "version": 1}],
    )
    latest = {"subject": "orders-value", "version": 1, "id": 1, "schema": ORDER}
    assert call(registry, "GET", "/subjects/orders-value/versions/latest") == (200, latest)
    assert call(registry, "POST", "/subjects/orders-value", schema=ORDER) == (200, latest)
    assert call(registry, "GET", "/schemas/ids/2") == (200, {"schema": '"string"'})


@pytest.mark.parametrize(
    ("level", "schema", "answer"),
    [
        ("BACKWARD", WITH_PRICE, (409, 409)),
        ("BACKWARD", WITH_DEFAULT, (200, 2)),
        ("FORWARD", WITH_PRICE, (200, 2)),
        ("FULL", WITH_PRICE, (409, 409)),
        ("FULL", WITH_DEFAULT, (200, 2)),
        ("NONE", '"string"', (200, 2)),
    ],
)
def test_a_new_version_must_be_compatible(
    registry: SchemaRegistry, level: str, schema: str, answer: tuple[int, int]
) -> None:
    register(registry, "orders-value", ORDER)
    assert call(registry, "PUT", "/config/orders-value", compatibility=level)[0] == 200
    path = "/compatibility/subjects/orders-value/versions/latest?verbose=true"
    status, checked = call(registry, "POST", path, schema=schema)
    assert (status, checked["is_compatible"]) == (200, answer[0] == 200)
    assert bool(checked["messages"]) == (answer[0] != 200)
    assert register(registry, "orders-value", schema) == answer


def test_transitive_levels_compare_with_every_version(registry: SchemaRegistry) -> None:
    registry.register("orders-value", ORDER.replace('"string"', '"int"'))
    registry.register("orders-value", '{"type":"record","name":"Order","fields":[]}')
    new = ORDER.replace('"string"', '"string","default":""')
    check = "/compatibility/subjects/orders-value/versions"
    assert call(registry, "POST", check, schema=new) == (200, {"is_compatible": True})
    call(registry, "PUT", "/config", compatibility="BACKWARD_TRANSITIVE")
    assert call(registry, "POST", check, schema=new) == (200, {"is_compatible": False})


def test_errors_have_the_codes_that_clients_know(registry: SchemaRegistry) -> None:
    register(registry, "orders-value", ORDER)
    codes = [
        call(registry, method, path, **body)[1]["error_code"]
        for method, path, body in (
            ("GET", "/subjects/other/versions/latest", {}),
            ("GET", "/subjects/orders-value/versions/7", {}),
            ("GET", "/schemas/ids/7", {}),
            ("POST", "/subjects/orders-value", {"schema": '"string"'}),
            ("POST", "/subjects/x/versions", {"schema": '{"type":"recor"}'}),
            ("POST", "/subjects/x/versions", {"schema": "{"}),
            ("POST", "/subjects/x/versions", {"schemaType": "AVRO"}),
            ("GET", "/subjects/orders-value/versions/first", {}),
            ("PUT", "/config", {"compatibility": "SOME"}),
            ("PUT", "/mode", {"mode": "SOME"}),
            ("GET", "/config/orders-value", {}),
            ("GET", "/elsewhere", {}),
        )
    ]
    assert codes == [
        *(40401, 40402, 40403, 40403, 42201, 42201, 422),
        *(42202, 42203, 42204, 40408, 404),
    ]


def test_a_read_only_subject_takes_no_new_schema(registry: SchemaRegistry) -> None:
    register(registry, "orders-value", ORDER)
    assert call(registry, "PUT", "/mode/orders-value", mode="READONLY") == (
        200,
        {"mode": "READONLY"},
    )
    assert register(registry, "orders-value", WITH_DEFAULT) == (422, 42205)
    assert register(registry, "orders-value", ORDER) == (200, 1)
    call(registry, "DELETE", "/mode/orders-value")
    assert register(registry, "orders-value", WITH_DEFAULT) == (200, 2)


def test_a_deleted_version_number_is_not_used_again(registry: SchemaRegistry) -> None:
    register(registry, "orders-value", ORDER)
    register(registry, "orders-value", WITH_DEFAULT)
    assert call(registry, "DELETE", "/subjects/orders-value/versions/2") == (200, 2)
    register(registry, "orders-value", WITH_DEFAULT)
    assert call(registry, "GET", "/subjects/orders-value/versions") == (200, [1, 3])
    assert call(registry, "DELETE", "/subjects/orders-value") == (200, [1, 3])
    assert call(registry, "GET", "/subjects") == (200, [])


def test_a_schema_may_refer_to_another(registry: SchemaRegistry) -> None:
    register(registry, "order", ORDER)
    parcel = '{"type":"record","name":"Parcel","fields":[{"name":"order","type":"Order"}]}'
    assert register(registry, "parcels-value", parcel) == (422, 42201)
    reference = {"name": "Order", "subject": "order", "version": 1}
    assert register(registry, "parcels-value", parcel, references=[reference]) == (200, 2)
    _, body = call(registry, "GET", "/schemas/ids/2")
    assert body["references"] == [reference]


def test_schemas_of_other_types_are_stored_as_they_are(registry: SchemaRegistry) -> None:
    proto = 'syntax = "proto3"; message Order { string id = 1; }'
    assert register(registry, "orders-value", proto, schemaType="PROTOBUF") == (200, 1)
    assert call(registry, "GET", "/schemas/ids/1") == (
        200,
        {"schema": proto, "schemaType": "PROTOBUF"},
    )
    assert register(registry, "orders-value", ORDER) == (409, 409)


def test_a_taken_port_is_one_clear_error(registry: SchemaRegistry) -> None:
    port = int(registry.url.rpartition(":")[2])
    with pytest.raises(BrokerError, match=f"cannot listen on 127.0.0.1:{port}"):
        SchemaRegistry(port=port).__enter__()


@pytest.mark.slow
def test_a_controlled_node_has_a_registry_beside_it() -> None:
    words = ("serve", "--ephemeral", "--port=0", "--control-port=0", "--registry-port=0")
    command = [sys.executable, "-m", "kwire", *words, "--log-level=ERROR"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("kwire registry on http://127.0.0.1:")
        with urlopen(f"{line.split()[-1]}/subjects", timeout=10) as answer:
            assert json.load(answer) == []
        while not process.stdout.readline().startswith("kwire ready on "):
            pass
        process.terminate()
        assert process.wait(20) == 0

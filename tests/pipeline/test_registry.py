"""The client of the schema registry: what it asks for, and one sentence when it cannot."""

import socket
import threading
from collections.abc import Iterator

import attrs
import pytest

from kwire.testing import SchemaRegistry
from kwire_pipeline.errors import Failure, Refusal
from kwire_pipeline.registry import ATTEMPTS, Client, UnknownSchema
from tests.support.avro_bytes import OLDER, ORDER


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    registry = SchemaRegistry()
    registry.register("orders-value", OLDER, schema_id=1)
    registry.register("orders-value", ORDER, schema_id=7)
    with registry as running:
        yield running


def client(url: str, *, timeout_s: float = 10, login: tuple[str, str] | None = None) -> Client:
    username, password = login or (None, None)
    return Client(
        url=url,
        username=username,
        password=password,
        timeout_s=timeout_s,
        sleep=lambda _: None,
    )


def test_schemas_by_id_and_by_subject(server: SchemaRegistry) -> None:
    registry = client(server.url)
    assert registry.schema(1) == OLDER
    version = registry.newest("orders-value")
    assert (version.number, version.schema_id, version.schema) == (2, 7, ORDER)
    assert server.requests == ["/schemas/ids/1", "/subjects/orders-value/versions/latest"]


def test_names_of_subjects_are_quoted(server: SchemaRegistry) -> None:
    with pytest.raises(UnknownSchema, match="has no subject a/b c"):
        client(server.url).newest("a/b c")
    assert server.requests == ["/subjects/a%2Fb%20c/versions/latest"]


def test_an_id_that_is_unknown_or_not_avro_has_a_reason(server: SchemaRegistry) -> None:
    server.register("orders-proto", "syntax = 'proto3';", "PROTOBUF", schema_id=8)
    server.register("orders-syntax", "syntax", schema_id=9)
    for schema_id, words in (
        (5, "the registry has no schema 5"),
        (8, "schema 8 is PROTOBUF, not Avro"),
        (9, "schema 9 is not an Avro schema"),
    ):
        with pytest.raises(UnknownSchema, match=words):
            client(server.url).schema(schema_id)


def test_a_registry_that_fails_for_a_moment_is_asked_again(server: SchemaRegistry) -> None:
    server.failures = 2
    assert client(server.url).schema(1) == OLDER
    server.failures = 9
    with pytest.raises(Failure, match=f"the registry {server.url} answers 503; is it running"):
        client(server.url).schema(1)
    assert server.failures == 5


def test_basic_authentication(server: SchemaRegistry) -> None:
    server.login = "me:opensesame"
    assert client(server.url, login=("me", "opensesame")).schema(1) == OLDER
    with pytest.raises(Refusal, match=r"refuses the user me \(401\): correct registry.username"):
        client(server.url, login=("me", "shazam")).schema(1)
    with pytest.raises(Refusal, match=r"refuses requests without a login \(401\): correct"):
        client(server.url).schema(1)


def test_a_wrong_path_is_no_unknown_schema(server: SchemaRegistry) -> None:
    """Else each record would be a dead letter for a slip in the file."""
    with pytest.raises(Refusal, match=r"answers 404 to /schemas/ids/1: is registry.url the URL"):
        client(f"{server.url}/apis").schema(1)


def test_a_registry_that_is_down_is_named_in_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(Failure) as failure:
        client(f"http://127.0.0.1:{port}").schema(1)
    assert str(failure.value) == (
        f"the registry http://127.0.0.1:{port} cannot be reached: connection refused; "
        "is it running?"
    )


def test_a_registry_that_does_not_answer_is_not_waited_for() -> None:
    """Neither one that is silent, nor one that sends a byte now and then."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Failure, match=r"does not answer within 0\.1 s"):
            client(url, timeout_s=0.1).schema(1)
    times = iter(range(100))
    with socket.create_server(("127.0.0.1", 0)) as slow:

        def drip() -> None:
            connection, _ = slow.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")
                connection.recv(1)

        thread = threading.Thread(target=drip)
        thread.start()
        url = f"http://127.0.0.1:{slow.getsockname()[1]}"
        chosen = attrs.evolve(client(url, timeout_s=3), clock=lambda: float(next(times)))
        with pytest.raises(Failure, match="does not answer within 3 s"):
            chosen.schema(1)
        thread.join()


@pytest.mark.parametrize("status", ["200 OK", "404 Not Found", "503 Service Unavailable"])
def test_an_answer_that_is_cut_off_says_nothing_about_the_schema(status: str) -> None:
    """A registry that restarts, or a proxy before it, closes connections in the middle."""
    with socket.create_server(("127.0.0.1", 0)) as ending:

        def cut_off() -> None:
            for _ in range(ATTEMPTS):
                connection, _ = ending.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 9\r\n\r\n{{".encode())

        thread = threading.Thread(target=cut_off)
        thread.start()
        with pytest.raises(Failure, match=r"cannot be reached: .*8 more expected"):
            client(f"http://127.0.0.1:{ending.getsockname()[1]}").schema(1)
        thread.join()

"""The schema registry: schemas by id and by subject, over HTTP.

Rules of this file: a request has one time limit for all its attempts; an answer is bounded; an
error names the URL and says what happened and what to do. A 404 without one of the registry's own
error codes does not mean that a schema is missing: a wrong URL must not turn every record into a
dead letter.
"""

import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException, HTTPResponse, IncompleteRead
from typing import Final, cast

import attrs

from kwire_pipeline.config import model
from kwire_pipeline.errors import Failure, Refusal

MAX_BYTES: Final = 16 << 20
CHUNK_BYTES: Final = 1 << 16
ATTEMPTS: Final = 4
BACKOFF_S: Final = 0.2
"""The pause before the second attempt; it doubles each time."""
NO_SUBJECT: Final = 40401
NO_VERSION: Final = 40402
NO_SCHEMA: Final = 40403
AVRO: Final = "AVRO"
JSON: Final = "JSON"
NAMES: Final = {AVRO: "Avro", JSON: "JSON Schema"}
TYPES: Final = "application/vnd.schemaregistry.v1+json, application/json"


@attrs.frozen
class Version:
    """The newest version of a subject."""

    subject: str
    number: int
    schema_id: int
    schema: str


class UnknownSchema(Exception):
    """The registry answered that the schema or subject does not exist, or is of another type."""

    def __init__(self, text: str, kind: str | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        """The other type, if there is a schema."""


class RefusedRequest(Exception):
    """An answer with an HTTP status of an error."""

    def __init__(self, code: int, text: bytes) -> None:
        super().__init__(code)
        self.code, self.text = code, text


@attrs.frozen(kw_only=True)
class Client:
    """A client of one registry."""

    url: str
    username: str | None
    password: str | None
    timeout_s: float
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def of(cls, registry: model.Registry) -> "Client":
        return cls(
            url=(registry.url or "").rstrip("/"),
            username=registry.username,
            password=registry.password,
            timeout_s=registry.timeout.total_seconds(),
        )

    def schema(self, schema_id: int) -> str:
        """Return a writer's schema; raise UnknownSchema, with a reason, if missing or not Avro."""
        answer = self._get(f"/schemas/ids/{schema_id}")
        if answer is None:
            raise UnknownSchema(f"the registry has no schema {schema_id}")
        return self._text(answer, f"schema {schema_id}", AVRO)

    def newest(self, subject: str, kind: str = AVRO) -> Version:
        """Return a subject's newest version; raise UnknownSchema if there is none of this type."""
        answer = self._get(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
        if answer is None:
            raise UnknownSchema(f"the registry {self.url} has no subject {subject}")
        schema, number, schema_id = (answer.get(name) for name in ("schema", "version", "id"))
        if not (isinstance(number, int) and isinstance(schema_id, int)):
            raise self._wrong(
                f"sends an unexpected response about subject {subject}: {schema!r:.60}"
            )
        return Version(subject, number, schema_id, self._text(answer, f"subject {subject}", kind))

    def _text(self, answer: Mapping[str, object], name: str, kind: str) -> str:
        own = str(answer.get("schemaType", AVRO))
        if own != kind:
            raise UnknownSchema(f"{name} is {own}, not {NAMES[kind]}", own)
        if answer.get("references"):
            raise UnknownSchema(f"{name} refers to other schemas, which is not supported")
        schema = answer.get("schema")
        if not isinstance(schema, str):
            raise self._wrong(f"sends an unexpected response about {name}")
        try:
            json.loads(schema)
        except ValueError:
            words = "a JSON Schema" if kind == JSON else "an Avro schema"
            raise UnknownSchema(f"{name} is not {words}") from None
        return schema

    def _get(self, path: str) -> Mapping[str, object] | None:
        """Return the object at a path; None if the registry answers that it does not exist."""
        deadline_s = self.clock() + self.timeout_s
        problem = ""
        for attempt in range(ATTEMPTS):
            try:
                return self._try(path, deadline_s)
            except RefusedRequest as error:
                if error.code == 404 and _code(error.text) in (NO_SUBJECT, NO_VERSION, NO_SCHEMA):
                    return None
                if error.code in (401, 403):
                    user = self.username
                    whom = "requests without a login" if user is None else f"the user {user}"
                    raise Refusal(
                        f"the registry {self.url} refuses {whom} ({error.code}): correct "
                        "registry.username and registry.password"
                    ) from None
                if error.code != 429 and error.code < 500:
                    raise self._wrong(f"answers {error.code} to {path}") from None
                problem = f"answers {error.code}"
            except TimeoutError:
                problem = f"does not answer within {self.timeout_s:g} s"
            except (OSError, HTTPException) as error:
                problem = f"cannot be reached: {_words(error)}"
            pause_s = BACKOFF_S * 2**attempt
            if attempt + 1 == ATTEMPTS or self.clock() + pause_s >= deadline_s:
                break
            self.sleep(pause_s)
        raise Failure(f"the registry {self.url} {problem}; is it running?")

    def _try(self, path: str, deadline_s: float) -> Mapping[str, object]:
        request = urllib.request.Request(self.url + path, headers={"Accept": TYPES})
        if self.username is not None:
            login = f"{self.username}:{self.password or ''}".encode()
            # A redirect to another host does not get the password.
            request.add_unredirected_header(
                "Authorization", f"Basic {base64.b64encode(login).decode()}"
            )
        left_s = max(0.001, deadline_s - self.clock())
        try:
            with urllib.request.urlopen(request, timeout=left_s) as answer:
                text = self._read(answer, path, deadline_s)
        except urllib.error.HTTPError as error:
            with error:
                text = self._read(cast(HTTPResponse, error), path, deadline_s)
            raise RefusedRequest(error.code, text) from None
        try:
            plain = json.loads(text)
        except ValueError:
            plain = None
        if not isinstance(plain, dict):
            raise self._wrong(f"does not answer {path} in JSON")
        return plain

    def _read(self, answer: HTTPResponse, path: str, deadline_s: float) -> bytes:
        text = bytearray()
        while chunk := answer.read1(CHUNK_BYTES):
            text += chunk
            if len(text) > MAX_BYTES:
                raise self._wrong(f"answers {path} with more than {MAX_BYTES >> 20} MB")
            if self.clock() >= deadline_s:
                raise TimeoutError
        if answer.length:
            raise IncompleteRead(bytes(text), answer.length)
        return bytes(text)

    def _wrong(self, problem: str) -> Refusal:
        return Refusal(f"{self.url} {problem}: is registry.url the URL of a schema registry?")


def _code(text: bytes) -> object:
    """Return the registry's own error code; None if the text has none."""
    try:
        plain = json.loads(text)
    except ValueError:
        return None
    return plain.get("error_code") if isinstance(plain, dict) else None


def _words(error: Exception) -> str:
    """Return a description of a connection error."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return "it did not answer in time"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror.lower()
    return str(reason) or type(reason).__name__

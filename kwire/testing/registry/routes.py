"""The paths of the registry's HTTP interface, as the serializers of Kafka's clients call them.

Pure: :func:`answer` returns the body of an answer, which is JSON, or raises RegistryError.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

from kwire.testing.registry import errors
from kwire.testing.registry.compatibility import AVRO, TYPES, Schema
from kwire.testing.registry.errors import RegistryError
from kwire.testing.registry.subjects import GLOBAL, Subjects

# Any: values of JSON.
Json: TypeAlias = Any


def answer(store: Subjects, method: str, target: str, body: Json) -> Json:
    """Answer one request; ``target`` is the path with the query string."""
    url = urlsplit(target)
    path = [unquote(part) for part in url.path.split("/") if part]
    query = {name: values[-1] for name, values in parse_qs(url.query).items()}
    match path:
        case []:
            return {}
        case ["schemas", *rest] if method == "GET":
            return _schemas(store, rest)
        case ["subjects", *rest]:
            return _subjects(store, method, rest, query, body)
        case ["compatibility", "subjects", subject, "versions", *rest] if method == "POST":
            return _compatibility(store, subject, rest, query, body)
        case ["config" | "mode" as kind, *rest] if len(rest) < 2:
            return _setting(store, method, kind, rest[0] if rest else GLOBAL, query, body)
    raise _no_such_path()


def _no_such_path() -> RegistryError:
    return RegistryError(404, "HTTP 404 Not Found")


def _schemas(store: Subjects, path: Sequence[str]) -> Json:
    match path:
        case ["types"]:
            return list(TYPES)
        case ["ids", number, *rest] if number.isdecimal():
            schema, places = store.schema(int(number)), store.places(int(number))
            match rest:
                case []:
                    return _body(schema)
                case ["schema"]:
                    return schema.text
                case ["subjects"]:
                    return list(dict.fromkeys(subject for subject, _ in places))
                case ["versions"]:
                    return [{"subject": name, "version": version} for name, version in places]
    raise _no_such_path()


def _subjects(
    store: Subjects, method: str, path: Sequence[str], query: Mapping[str, str], body: Json
) -> Json:
    match method, path:
        case "GET", []:
            prefix = query.get("subjectPrefix", "")
            return [name for name in store.subjects if name.startswith(prefix)]
        case "POST", [subject]:
            version = store.lookup(subject, _schema(store, body))
            return _version(store, subject, version)
        case "DELETE", [subject]:
            versions = list(store.subject(subject).versions)
            del store.subjects[subject]
            return versions
        case "GET", [subject, "versions"]:
            return list(store.subject(subject).versions)
        case "POST", [subject, "versions"]:
            schema = _schema(store, body)
            schema_id = store.register(subject, schema)
            version = store.lookup(subject, schema)
            return {"id": schema_id, "version": version, **_body(schema)}
        case "GET", [subject, "versions", text]:
            return _version(store, subject, store.version(subject, text))
        case "GET", [subject, "versions", text, "schema"]:
            return _version(store, subject, store.version(subject, text))["schema"]
        case "DELETE", [subject, "versions", text]:
            version = store.version(subject, text)
            store.delete_version(subject, version)
            return version
    raise _no_such_path()


def _compatibility(
    store: Subjects, subject: str, path: Sequence[str], query: Mapping[str, str], body: Json
) -> Json:
    version = store.version(subject, path[0]) if path else None
    reasons = store.reasons_against(subject, _schema(store, body), version)
    result: Json = {"is_compatible": not reasons}
    if query.get("verbose") == "true":
        result["messages"] = reasons
    return result


def _setting(
    store: Subjects, method: str, kind: str, subject: str, query: Mapping[str, str], body: Json
) -> Json:
    """Get or change the compatibility level, or the mode, of a subject or of all subjects."""
    values = store.levels if kind == "config" else store.modes
    shown = "compatibilityLevel" if kind == "config" else "mode"
    sent = "compatibility" if kind == "config" else "mode"
    match method:
        case "GET":
            if subject not in values and query.get("defaultToGlobal") != "true":
                raise RegistryError(
                    errors.NO_COMPATIBILITY,
                    f"Subject '{subject}' does not have subject-level {kind} configured",
                )
            return {shown: values.get(subject, values[GLOBAL])}
        case "PUT":
            value = str(_field(body, sent)).upper()
            set_value = store.set_level if kind == "config" else store.set_mode
            set_value(subject, value)
            return {sent: value}
        case "DELETE" if subject:
            return {shown: values.pop(subject, values[GLOBAL])}
    raise _no_such_path()


def _schema(store: Subjects, body: Json) -> Schema:
    """Return the schema in the body of a request."""
    references = tuple(
        (str(_field(each, "name")), str(_field(each, "subject")), int(_field(each, "version")))
        for each in body.get("references") or ()
    )
    schema = Schema(str(_field(body, "schema")), body.get("schemaType") or AVRO, references)
    return store.with_references(schema)


def _field(body: Json, name: str) -> Json:
    if not isinstance(body, dict) or name not in body:
        raise RegistryError(422, f"the body has no {name}")
    return body[name]


def _version(store: Subjects, subject: str, version: int) -> Json:
    schema_id = store.subject(subject).versions[version]
    about = {"subject": subject, "version": version, "id": schema_id}
    return {**about, **_body(store.schema(schema_id))}


def _body(schema: Schema) -> Json:
    body: Json = {"schema": schema.text}
    if schema.type != AVRO:
        body["schemaType"] = schema.type
    if schema.references:
        names = ("name", "subject", "version")
        body["references"] = [dict(zip(names, each, strict=True)) for each in schema.references]
    return body

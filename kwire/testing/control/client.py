"""`kwire control`: calls a verb of a running `kwire serve --control-port` or `kwire proxy`.

The verbs and their arguments come from the server's OpenAPI document, so they are not listed here.
"""

import http.client
import json
from collections.abc import Mapping, Sequence
from typing import Final

from kwire.testing.control.table import Json
from kwire.testing.errors import BrokerError

_TIMEOUT_S: Final = 600.0
_OK: Final = 200


def call_verb(port: int, verb: str, words: Sequence[str]) -> str:
    """Call a verb with NAME=VALUE arguments; return its result as JSON, or raise BrokerError."""
    paths = _request(port, "GET", "/v1/openapi.json")["paths"]
    operation = paths.get(f"/v1/{verb}")
    if operation is None:
        names = ", ".join(path.removeprefix("/v1/") for path in paths)
        raise BrokerError(f"there is no verb {verb}; the verbs are {names}")
    schema = operation["post"]["requestBody"]["content"]["application/json"]["schema"]
    values = dict(_argument(verb, word, schema["properties"]) for word in words)
    return json.dumps(_request(port, "POST", f"/v1/{verb}", values), indent=2)


def describe_verbs(port: int) -> list[str]:
    """Return a line for each verb: its arguments, and what it does."""
    lines = []
    for path, item in _request(port, "GET", "/v1/openapi.json")["paths"].items():
        schema = item["post"]["requestBody"]["content"]["application/json"]["schema"]
        names = [n if n in schema["required"] else f"[{n}]" for n in schema["properties"]]
        lines.append(f"{' '.join([path.removeprefix('/v1/'), *names])}: {item['post']['summary']}")
    return lines


def _argument(verb: str, word: str, properties: Mapping[str, Json]) -> tuple[str, Json]:
    """Return the name and the value of a NAME=VALUE; strings need no quotes."""
    name, equals, text = word.partition("=")
    name = name.replace("-", "_")
    if not equals:
        raise BrokerError(f"{word} is not an argument: write NAME=VALUE")
    if name not in properties:
        raise BrokerError(f"{verb} has no argument {name}; its arguments: {', '.join(properties)}")
    kinds = properties[name]["type"]
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if text == "null" and "null" in kinds:
        return name, None
    if "string" in kinds:
        return name, text
    if "array" in kinds and not text.startswith("["):
        return name, text.split(",")
    try:
        return name, json.loads(text)
    except ValueError:
        raise BrokerError(f"{name} must be a JSON {kinds[0]}, not {text}") from None


def _request(port: int, method: str, path: str, values: Json = None) -> Json:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        body = None if values is None else json.dumps(values)
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise BrokerError(f"no control server answers on port {port}: {error}") from error
    finally:
        connection.close()
    if response.status != _OK:
        raise BrokerError(answer["error"])
    return answer

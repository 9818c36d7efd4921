"""The whole table: the rows by hand, and a row for each further version of each API of brokers.

Permissions are checked for the versions one by one: a response of another shape could show what the
usual one hides.
"""

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from kwire.codec.apis import BY_NAME
from tests.support.authorization.cases import Case, Json
from tests.support.authorization.old_versions import BY_HAND
from tests.support.codec.message_json import from_json

NO_ID: Final = "A" * 22
SLOW: Final = ("DescribeShareGroupOffsets", "ShareFetch")
"""APIs whose other versions have no rows: once allowed, they wait for a state topic that a single
broker cannot create."""


def other_versions(rows: Sequence[Case]) -> Iterator[Case]:
    """Yield a row for each stable version without one, made of the nearest row that suits it."""
    of_brokers = [row for row in rows if row.listener == "broker"]
    present = {(row.api, row.version) for row in of_brokers}
    for name in dict.fromkeys(row.api for row in of_brokers if row.api not in SLOW):
        api = BY_NAME[name]
        own = [row for row in of_brokers if row.api == name]
        for version in range(api.first, api.stable + 1):
            if (name, version) in present:
                continue
            suiting = [row for row in own if not lacking(row.body, name, version)]
            row = min(suiting or own, key=partial(_strangeness, version=version))
            body = row.body
            while lack := lacking(body, name, version):
                body = _without(body, lack)
            yield Case(f"{name}, version {version}", name, version, body, row.needs)


def _strangeness(row: Case, version: int) -> tuple[bool, bool, int]:
    """Order rows: those without permissions last, and those about topics that do not exist.

    kwire waits for the creation of such topics.
    """
    return not row.needs, "{A}" in str(row.body), abs(row.version - version)


def lacking(body: Json, api: str, version: int) -> str | None:
    """Return the name of a field that the version lacks, or None."""
    text = re.sub(r'"\{BATCH[^"]*"', '""', json.dumps(body)).replace("{ID}", NO_ID)
    try:
        from_json(BY_NAME[api].request, json.loads(text), version)
    except KeyError as error:
        return str(error.args[0])
    return None


def _without(body: Json, name: str) -> Json:
    """Return the body without a field, wherever it is."""
    result: Json = json.loads(
        json.dumps(body), object_hook=lambda each: {k: v for k, v in each.items() if k != name}
    )
    return result


ALL_CASES: Final = (*BY_HAND, *other_versions(BY_HAND))

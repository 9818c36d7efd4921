"""Write the message definitions in Kafka's own jars to a file, one line per field.

    python scripts/message_facts.py LIBS tests/vectors/definitions-4.3.1.tsv.gz

``LIBS`` is the folder of a release's jars.  tests/codec/test_tables.py compares every message
table with the file: names, types, versions, nullable, tags, defaults, ignorable.  Columns:

    message  name  api or record type  kind  valid versions  flexible versions  unstable
    field    name  path  type  versions  nullable  tag  tagged versions  ignorable  compact  default

Structures are expanded where they are used; a default is JSON, or empty if none is stated.
"""

import gzip
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

ENTRY = re.compile(r"(common/message|common/metadata|message)/\w+\.json$")


def definitions(libs: Path) -> dict[str, dict[str, Any]]:
    """Return every message that the jars in ``libs`` define, by name."""
    definitions_by_name = {}
    for jar in sorted(libs.glob("kafka*.jar")):
        with ZipFile(jar) as archive:
            for entry in archive.namelist():
                if ENTRY.fullmatch(entry):
                    definition = json.loads(strip_comments(archive.read(entry).decode()))
                    if version_range(definition.get("validVersions")):
                        definitions_by_name[definition["name"].removesuffix("Data")] = definition
    return dict(sorted(definitions_by_name.items()))


def strip_comments(text: str) -> str:
    lines = (line for line in text.splitlines() if not line.strip().startswith("//"))
    return "\n".join(re.sub(r'\s//[^"]*$', "", line) for line in lines)


def snake(name: str) -> str:
    return re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), name[0].lower() + name[1:])


def version_range(versions: object) -> str:
    return "" if versions in (None, "none") else str(versions)


def lines(name: str, definition: dict[str, Any]) -> Iterator[list[str]]:
    """Yield the message's line, and one for each of its fields."""
    shared = {item["name"]: item["fields"] for item in definition.get("commonStructs", ())}
    yield [
        "message",
        name,
        str(definition.get("apiKey", "")),
        definition["type"],
        version_range(definition["validVersions"]),
        version_range(definition.get("flexibleVersions")),
        str(int(definition.get("latestVersionUnstable") is True)),
    ]
    yield from fields(name, "", definition["fields"], shared)


def fields(
    name: str, above: str, siblings: list[dict[str, Any]], shared: dict[str, Any]
) -> Iterator[list[str]]:
    for field in siblings:
        path = above + snake(field["name"])
        kind = field["type"]
        inner = field.get("fields") or shared.get(kind.removeprefix("[]"), [])
        if inner:
            kind = "[]struct" if kind.startswith("[]") else "struct"
        tagged = version_range(field.get("taggedVersions"))
        default = field.get("default")
        yield [
            "field",
            name,
            path,
            kind,
            version_range(field.get("versions", tagged)),
            version_range(field.get("nullableVersions")),
            str(field.get("tag", "")),
            tagged,
            str(int(str(field.get("ignorable")).lower() == "true")),
            str(int(field.get("flexibleVersions") != "none")),
            "" if default is None else json.dumps(default),
        ]
        yield from fields(name, path + ".", inner, shared)


def main() -> None:
    libs, out = map(Path, sys.argv[1:])
    text = "".join(
        "\t".join(line) + "\n"
        for name, definition in definitions(libs).items()
        for line in lines(name, definition)
    )
    out.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{out}: {text.count(chr(10))} lines")


if __name__ == "__main__":
    main()

"""Write the table of the versions that older releases of Kafka advertise.

    python scripts/release_versions.py JARS

``JARS`` is a folder with the ``kafka-clients`` jar of one patch release of each minor release,
whose message definitions say which versions are stable and on which listeners an API is served.
The table is ``kwire/testing/release_versions.py``. tests/testing/test_releases.py compares it with
answers of those releases.
"""

import json
import re
import sys
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from kwire.codec.apis import ListenerType  # noqa: E402
from kwire.handlers import served_on  # noqa: E402
from scripts.message_facts import strip_comments  # noqa: E402

TABLE = ROOT / "kwire" / "testing" / "release_versions.py"
ENTRY = re.compile(r"common/message/\w+Request\.json")
CLIENTS = {"broker", "zkBroker"}
"""The listeners for clients: until 3.9, brokers could also run with ZooKeeper."""
ABSENT = "-"
HEADER = '''"""The last versions that older releases of Apache Kafka advertise to clients, by API.

Written by scripts/release_versions.py. An entry ``3.7=10`` is the last version from that release
onwards, ``-`` that the release does not have the API. An API without an entry for a release has
that of the release before it, and none if there is no earlier entry.
"""

from collections.abc import Mapping
from typing import Final

OLDER_RELEASES: Final = (
    {releases},
)
LAST_VERSIONS: Final[Mapping[str, str]] = {{
{rows}
}}
'''


def last_versions(jar: Path) -> dict[int, int]:
    """Return the last stable version of each API for clients, by API key."""
    versions = {}
    with ZipFile(jar) as archive:
        for entry in filter(ENTRY.fullmatch, archive.namelist()):
            text = strip_comments(archive.read(entry).decode()).strip()
            definition, _ = json.JSONDecoder().raw_decode(
                text
            )  # One of 3.0 ends with a brace more.
            valid = definition["validVersions"]
            if valid == "none" or not CLIENTS & set(definition["listeners"]):
                continue
            last = int(valid.rpartition("-")[2])
            if definition.get("latestVersionUnstable") is True:
                last -= 1
            if last >= int(valid.partition("-")[0]):
                versions[definition["apiKey"]] = last
    return versions


def table(jars: Path) -> str:
    by_release = {}
    for jar in jars.glob("kafka-clients-*.jar"):
        major, minor, _ = jar.stem.rpartition("-")[2].split(".")
        by_release[int(major), int(minor)] = last_versions(jar)
    rows = []
    for api in served_on(ListenerType.BROKER).values():
        entries, before = [], ABSENT
        for release, versions in sorted(by_release.items()):
            last = str(versions.get(api.key, ABSENT))
            if last != before:
                entries.append("{}.{}={}".format(*release, last))
            before = last
        if entries:
            rows.append(f'    "{api.name}": "{" ".join(entries)}",')
    releases = ", ".join('"{}.{}"'.format(*release) for release in sorted(by_release))
    return HEADER.format(releases=releases, rows="\n".join(rows))


if __name__ == "__main__":
    TABLE.write_text(table(Path(sys.argv[1])))

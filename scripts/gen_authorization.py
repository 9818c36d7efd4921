"""The generator of the table in docs/authorization.md: requests, permissions, and the denials."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kwire.errors import BY_CODE, kafka_name  # noqa: E402
from tests.support.authorization.cases import CASES, Case  # noqa: E402
from tests.support.authorization.share_groups import SHARE_GROUPS  # noqa: E402
from tests.support.authorization.share_partitions import SHARES  # noqa: E402
from tests.support.authorization.share_states import SHARE_STATES  # noqa: E402
from tests.support.authorization.streams_groups import STREAMS_GROUPS  # noqa: E402

PAGE: Final = ROOT / "docs" / "authorization.md"
ANSWERS: Final = ROOT / "tests" / "vectors" / "authorization.json"
BEGIN: Final = "<!-- The table up to the next comment is made by scripts/gen_docs.py. -->"
END: Final = "<!-- End of the table. -->"


def authorization() -> str:
    """Return the page with the table put between its two comments."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    answers = json.loads(ANSWERS.read_text())
    cases = (*CASES, *SHARE_GROUPS, *SHARE_STATES, *SHARES, *STREAMS_GROUPS)
    rows = "".join(_row(case, answers[case.name]["denied"]) for case in cases)
    head = "| request | permissions | answer without any |\n|---|---|---|\n"
    return f"{before}{BEGIN}\n\n{head}{rows}\n{END}{after}"


def _row(case: Case, denied: Any) -> str:
    needs = ", ".join(need.replace("{", "").replace("}", "") for need in case.needs)
    name = case.name.replace("{", "").replace("}", "")
    return (
        f"| {name} | {needs.replace('Cluster kafka-cluster', 'Cluster') or 'none'} | "
        f"{_answer(denied) if case.needs else 'as with any'} |\n"
    )


def _answer(denied: Any) -> str:
    codes = sorted({code for code in _codes(denied) if code})
    if denied == "closed":
        return "the connection is closed"
    return ", ".join(kafka_name(BY_CODE[code]) for code in codes) or "what is denied is left out"


def _codes(value: Any) -> Iterator[int]:
    if isinstance(value, list):
        for item in value:
            yield from _codes(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name.lower().endswith("errorcode"):
                yield item
            else:
                yield from _codes(item)

"""docs/configuration.md says what the tables say."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_configuration_is_up_to_date() -> None:
    """If not: ``python scripts/gen_docs.py``."""
    spec = importlib.util.spec_from_file_location("gen_docs", ROOT / "scripts" / "gen_docs.py")
    assert spec is not None
    assert spec.loader is not None
    gen_docs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gen_docs)
    assert (ROOT / "docs" / "configuration.md").read_text() == gen_docs.configuration()

"""The generated documents say what the tables say."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_documents_are_up_to_date() -> None:
    """If not: ``python scripts/gen_docs.py``."""
    spec = importlib.util.spec_from_file_location("gen_docs", ROOT / "scripts" / "gen_docs.py")
    assert spec is not None
    assert spec.loader is not None
    gen_docs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gen_docs)
    for name, make in gen_docs.DOCUMENTS.items():
        assert (ROOT / name).read_text() == make(), name

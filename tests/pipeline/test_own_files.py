"""A transform is its module and the modules beside it that it imports."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kwire_pipeline.engine.own_files import own_files
from kwire_pipeline.engine.shape_and_tables import transform_hash

FILES = {
    "own_orders.py": "import json\nimport own_rates\nfrom own_lib import names\n"
    "def clean(frame):\n    import own_late\n    return frame\n",
    "own_rates.py": "import own_orders\n",
    "own_late.py": "",
    "own_lib/__init__.py": "",
    "own_lib/names.py": "from . import deep\nfrom .deep import word\nimport pyspark\n",
    "own_lib/deep.py": "word = 1\n",
    "own_lib/other.py": "",
    "own_apart.py": "",
}
PARTS = [name for name in FILES if name not in ("own_lib/other.py", "own_apart.py")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for module in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[module]


def test_imports_from_the_folder_of_the_transform_are_part_of_it(folder: Path) -> None:
    files = own_files("own_orders")
    assert {str(path.relative_to(folder)) for path in files.values()} == set(PARTS)
    assert own_files("sys") == {}


def test_module_of_a_package_has_the_packages_of_its_name(folder: Path) -> None:
    assert set(own_files("own_lib.names")) == {"own_lib.names", "own_lib", "own_lib.deep"}


def test_parts_of_a_package_without_a_file_of_its_own_count(folder: Path) -> None:
    (folder / "own_jobs").mkdir()
    (folder / "own_jobs" / "clean.py").write_text("from own_jobs import parts\nimport own_apart\n")
    (folder / "own_jobs" / "parts.py").write_text("")
    assert set(own_files("own_jobs.clean")) == {"own_jobs.clean", "own_jobs.parts", "own_apart"}


@pytest.mark.parametrize("name", FILES)
def test_change_of_a_part_changes_the_definition_of_the_transform(folder: Path, name: str) -> None:
    before = transform_hash("own_orders:clean")
    assert before != ""
    with (folder / name).open("a") as file:
        file.write("# another line\n")
    assert (transform_hash("own_orders:clean") != before) == (name in PARTS)

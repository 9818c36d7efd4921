"""Data directories of other format versions (invariant 93), and of none."""

from pathlib import Path

import pytest

from kwire.storage_format.directories import CannotOpenError
from tests.support.server.nodes import config, create, new_node, running, topics

pytestmark = pytest.mark.slow


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


async def test_directory_of_a_later_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    """Invariant 93: a downgrade is refused by name, and the later version finds all its files."""
    async with running(tmp_path) as node:
        assert await create(node, "kept") == 0
    meta = tmp_path / "meta.properties"
    meta.write_text(meta.read_text().replace("version=1", "version=2"))
    before = content(tmp_path)
    with pytest.raises(CannotOpenError, match=r"meta\.properties has version 2, not 0 or 1"):
        new_node(config(tmp_path))
    assert content(tmp_path) == before
    meta.write_text(meta.read_text().replace("version=2", "version=1"))
    async with running(tmp_path) as node:
        assert await topics(node) == {"kept"}


def test_node_without_data_says_how_to_format_it(tmp_path: Path) -> None:
    """The voters of a dynamic quorum are not in the configuration, so the command has to say."""
    dynamic = config(tmp_path, controller_quorum_bootstrap_servers="127.0.0.1:1,127.0.0.1:2")
    with pytest.raises(CannotOpenError, match="--initial-controllers in a cluster that begins"):
        new_node(dynamic)
    static = config(tmp_path, controller_quorum_voters="1@127.0.0.1:1,2@127.0.0.1:2")
    with pytest.raises(CannotOpenError, match=r"--config FILE` with the cluster's id$"):
        new_node(static)

"""Starts of nodes whose data directories are named in odd ways, copied, damaged or incomplete."""

import shutil
from pathlib import Path

import pytest

from kwire.configs.declare import ConfigError
from kwire.storage_format.directories import CannotOpenError
from tests.support.server.nodes import config, create, new_node, running

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("is_formatted", [False, True])
async def test_metadata_directory_under_a_second_name_is_refused(
    tmp_path: Path, is_formatted: bool
) -> None:
    """The node would wait for its own lock."""
    data, link = tmp_path / "data", tmp_path / "link"
    data.mkdir()
    link.symlink_to(data)
    if is_formatted:
        async with running(data):
            pass
    with pytest.raises(ConfigError, match=rf"are the same; write metadata.log.dir={data}"):
        new_node(config(data, metadata_log_dir=str(link)))


async def test_copy_of_a_directory_is_refused_beside_it(tmp_path: Path) -> None:
    """Kafka refuses the second directory with the same directory.id too."""
    paths = [tmp_path / name for name in ("a", "b")]
    settings = {"log_dirs": ",".join(map(str, paths)), "metadata_log_dir": str(tmp_path / "m")}
    async with running(tmp_path, **settings) as server:
        await create(server, "t")
    shutil.rmtree(paths[1])
    shutil.copytree(paths[0], paths[1])
    with pytest.raises(CannotOpenError, match=rf"{paths[1]} has the directory.id of {paths[0]}: "):
        new_node(config(tmp_path, **settings))

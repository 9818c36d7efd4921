"""CRC-32C: the ``crc32c`` package's function, without the rest of that package.

On import the package reads its own version from the metadata of the installed packages. This
imports email, zipfile and csv, over 10 ms of a start that takes 240. Therefore only its extension
module is loaded; if that is not found, the whole package is imported.
"""

from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING

__all__ = ["crc32c"]

if TYPE_CHECKING:
    from collections.abc import Callable

    from crc32c import crc32c
else:

    def _load() -> "Callable[..., int]":
        package = PathFinder.find_spec("crc32c")
        if package is not None and package.submodule_search_locations:
            spec = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
            if spec is not None and spec.loader is not None:
                module = module_from_spec(spec)
                spec.loader.exec_module(module)
                return module.crc32c
        from crc32c import crc32c

        return crc32c

    crc32c = _load()

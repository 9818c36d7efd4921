"""Add the extension module kwire/_speedups.c to wheels where a C compiler can build it.

Without a compiler the wheel is pure Python. An editable install is left alone: scripts/setup.py
builds the module in the source tree.
"""

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SpeedupsHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        script = runpy.run_path(str(Path(self.root) / "scripts" / "speedups.py"))
        target: Path = script["TARGET"]
        if script["build"](target):
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{platform}"
            build_data["force_include"][str(target)] = f"kwire/{target.name}"

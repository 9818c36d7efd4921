"""A plugin with which pytest compiles the tests of the folders it is given, and runs none.

Rules: the compiled modules are where pytest looks for them, beside their sources, and are those of
its own rewriting of assertions. A stage's processes collect the same tests at the same time, so on
a clean clone each of them would compile nearly all modules: more than half of what collecting them
takes.
"""

import multiprocessing
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from _pytest.assertion import rewrite
from _pytest.assertion.rewrite import assertstate_key


def compile_module(config: pytest.Config, path: Path) -> None:
    """Compile one module, unless its compiled form is there and up to date."""
    cache = rewrite.get_cache_dir(path)
    compiled = cache / f"{path.stem}{rewrite.PYC_TAIL}"
    if rewrite._read_pyc(path, compiled) is None:
        cache.mkdir(exist_ok=True)
        source_hash, code = rewrite._rewrite_test(path, config)
        rewrite._write_pyc(config.stash[assertstate_key], code, source_hash, compiled)


def compile_part(config: pytest.Config, paths: Sequence[Path]) -> None:
    for path in paths:
        compile_module(config, path)


def pytest_cmdline_main(config: pytest.Config) -> int:
    paths = sorted(
        path
        for folder in config.args
        for pattern in ("test_*.py", "conftest.py")
        for path in Path(folder).rglob(pattern)
    )
    count = os.cpu_count() or 1
    fork = multiprocessing.get_context("fork")  # The configuration is inherited.
    parts = [
        fork.Process(target=partial(compile_part, config, paths[n::count])) for n in range(count)
    ]
    for part in parts:
        part.start()
    for part in parts:
        part.join()
    return max(part.exitcode or 0 for part in parts)

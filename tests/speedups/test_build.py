"""The extension module is built where a C compiler is, and nothing depends on it."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "speedups.py"


def build(target: Path, linker: str) -> str:
    """Run the script with this compiler; return what it prints on stderr."""
    done = subprocess.run(
        [sys.executable, SCRIPT, target],
        env={**os.environ, "LDSHARED": linker},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert not done.stdout
    return done.stderr


def test_without_a_compiler_nothing_is_built_or_said(tmp_path: Path):
    assert build(tmp_path / "_speedups.abi3.so", "no-such-compiler -shared") == ""
    assert list(tmp_path.iterdir()) == []


def test_failing_compiler_is_one_line(tmp_path: Path):
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho 'no such flag' >&2\necho more >&2\nexit 1\n")
    compiler.chmod(0o755)
    errors = build(tmp_path / "_speedups.abi3.so", str(compiler))
    assert errors == "kwire: _speedups.c was not built, Python is used: no such flag\n"
    assert list(tmp_path.iterdir()) == [compiler]


def test_module_newer_than_its_source_is_kept(tmp_path: Path):
    target = tmp_path / "_speedups.abi3.so"
    target.write_bytes(b"as it was")
    assert build(target, "no-such-compiler") == ""
    assert target.read_bytes() == b"as it was"
    os.utime(target, (1, 1))
    build(target, "no-such-compiler")
    assert not target.exists()

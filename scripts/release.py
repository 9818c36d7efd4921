"""Build what a release consists of, and check it: ``.venv/bin/python scripts/release.py [FOLDER]``.

FOLDER (default ``dist``) gets the source distribution, the wheel built from it, and a list of the
wheel's components (SBOM, CycloneDX as JSON) with the versions that an installation gets today.
No dependency of it may have a known vulnerability (pip-audit; an index without advisories checks
nothing, and the output says so).
Rules: the version is that of ``kwire/__init__.py``, and CHANGELOG.md must have a section for it;
what fails a check is not left in FOLDER.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


def main() -> int:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist")
    version = current_version()
    if f"\n## {version}" not in (ROOT / "CHANGELOG.md").read_text():
        print(f"CHANGELOG.md has no section for {version}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(scratch) / "built"
        run("uv", "build", "--out-dir", built, ROOT)
        (wheel,) = built.glob(f"kwire-{version}-*.whl")
        (source,) = built.glob(f"kwire-{version}.tar.gz")
        run("twine", "check", "--strict", wheel, source)
        components = built / f"kwire-{version}.cdx.json"
        list_components(wheel, components, Path(scratch) / "venv")
        audit(Path(scratch) / "venv")
        target.mkdir(parents=True, exist_ok=True)
        for file in (source, wheel, components):
            (target / file.name).write_bytes(file.read_bytes())
            print(target / file.name)
    return 0


def current_version() -> str:
    match = re.search(
        r'^__version__ = "(.+)"$', (ROOT / "kwire/__init__.py").read_text(), re.MULTILINE
    )
    assert match is not None
    return match[1]


def list_components(wheel: Path, target: Path, environment: Path) -> None:
    """Install the wheel into a new environment, and write what is in it."""
    python = environment / "bin" / "python"
    run("uv", "venv", "--quiet", "--python", sys.executable, environment)
    run("uv", "pip", "install", "--quiet", "--python", python, "--only-binary", ":all:", wheel)
    tool = ("uvx", "--quiet", "--from", "cyclonedx-bom", "cyclonedx-py")
    run(*tool, "environment", "--output-reproducible", "--output-file", target, python)


def audit(environment: Path) -> None:
    """Fail if an installed package has a known vulnerability."""
    (packages,) = environment.glob("lib/python*/site-packages")
    run("python", ROOT / "scripts/audit.py", "--known-only", packages)


def run(tool: str, *arguments: str | Path) -> None:
    subprocess.run([BIN / tool, *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())

"""Make .venv with kwire's dependencies: ``setup.py base`` to run it, ``setup.py test`` to test it.

Uses only the standard library. Rules: two runs at once are safe (a file lock); a stamp file shows
the shell scripts that the environment is complete; a machine without Debian's python3-venv works
too, because pip can be fetched from the package index as a wheel that installs itself.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.parse import urljoin

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
EXTRAS = {"base": "", "test": "[test,pipeline]"}
SYSTEM_PACKAGES = {"javac": "openjdk-17-jdk-headless", "mvn": "maven"}
OPTIONAL_PACKAGES = {
    "iptables": "iptables",
    "mmdebstrap": "mmdebstrap",
    "podman": "podman netavark",
    "runc": "runc",
}
"""Packages without which the tests that need them are skipped."""
UPDATE = "apt-get update -q"


def main(kind: str) -> None:
    if (why := kept_from_us()) is not None:
        sys.exit(f"kwire: {why}; make a clone of your own, or ask for the right to read and run it")
    ROOT.joinpath(".venv.lock").touch()
    with ROOT.joinpath(".venv.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if kind == "test":
            install_system_packages()
        if not ready(kind):
            install(kind)


def ready(kind: str) -> bool:
    stamp = VENV / f".ready-{kind}"
    return (
        stamp.exists()
        and stamp.stat().st_mtime > ROOT.joinpath("pyproject.toml").stat().st_mtime
        and os.access(VENV / "bin" / "python", os.X_OK)
    )


def kept_from_us() -> str | None:
    """Return the reason why this user may not run another user's environment; None if they may.

    Only its owner can make it again.
    """
    try:
        owner = VENV.stat().st_uid
    except FileNotFoundError:
        return None
    python = VENV / "bin" / "python"
    if os.geteuid() in (0, owner) or os.access(python, os.X_OK):
        return None
    problem = f"{VENV} was made by {user_name(owner)}, and {user_name(os.geteuid())} may not run it"
    try:
        return f"{problem} (its Python is {python.readlink()})"
    except OSError:
        return problem


def user_name(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def install(kind: str) -> None:
    """Create the environment if needed and install kwire, editable, with its extras."""
    python = VENV / "bin" / "python"
    if not works(python):
        try:
            import venv
        except ImportError:
            sys.exit("kwire: this Python has no venv module; Debian: apt-get install python3-venv")
        shutil.rmtree(VENV, ignore_errors=True)
        venv.create(VENV, symlinks=True, with_pip=False)
    pip = [str(python), "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode:
        bootstrap_pip(python)
    print(f"kwire: installing into {VENV} (once)", file=sys.stderr, flush=True)
    command = [
        *pip,
        "install",
        "--quiet",
        "--no-compile",
        "--disable-pip-version-check",
        "-e",
        f"{ROOT}{EXTRAS[kind]}",
    ]
    if subprocess.run(command, check=False).returncode:
        sys.exit("kwire: pip could not install the packages named in pyproject.toml (see above)")
    # A start that compiles takes twice as long. pip compiles no editable install, and all others on
    # one core. Packages may have files for other versions of Python, which do not compile.
    compiled = [str(python), "-m", "compileall", "-qq", "-j", "0"]
    subprocess.run([*compiled, str(ROOT / "kwire"), str(VENV / "lib")], check=False)
    subprocess.run([str(python), str(ROOT / "scripts" / "speedups.py")], check=False)
    (VENV / f".ready-{kind}").touch()
    if kind == "test":
        (VENV / ".ready-base").touch()


def works(python: Path) -> bool:
    """Return whether the environment's interpreter still runs and is new enough."""
    test = [str(python), "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    return python.exists() and not subprocess.run(test, capture_output=True, check=False).returncode


def bootstrap_pip(python: Path) -> None:
    """Install pip, by ensurepip if the distribution has it, else from the package index."""
    ensure = [str(python), "-m", "ensurepip", "--upgrade", "--default-pip"]
    if not subprocess.run(ensure, capture_output=True, check=False).returncode:
        return
    base = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
    page = f"{base}/pip/"
    try:
        with urllib.request.urlopen(page, timeout=60) as answer:
            links = re.findall(
                r'href="([^"#]+?/(pip-[\d.]+-py3[^/"]*\.whl))["#]', answer.read().decode()
            )
        link, name = max(links, key=lambda candidate: version_of(candidate[1]))
        path = VENV / name
        with urllib.request.urlopen(urljoin(page, link), timeout=60) as answer:
            path.write_bytes(answer.read())
    except (OSError, ValueError) as error:
        sys.exit(f"kwire: no pip, none to be had ({error}); Debian: apt-get install python3-venv")
    subprocess.run([str(python), f"{path}/pip", "install", "--quiet", str(path)], check=True)
    path.unlink()


def version_of(wheel: str) -> tuple[int, ...]:
    return tuple(int(part) for part in wheel.split("-")[1].split("."))


def install_system_packages() -> None:
    """Install the system packages that the tests need; exit with their names if not permitted."""
    if missing := _missing(SYSTEM_PACKAGES):
        command = _install_command(missing)
        if not _may_install():
            sys.exit(f"kwire: the tests need {' and '.join(missing)} (Debian: {command})")
        if not _run_as_root(UPDATE, command):
            sys.exit(f"kwire: could not run: {command}")
    if (optional := _missing(OPTIONAL_PACKAGES)) and not (
        _may_install() and _run_as_root(UPDATE, _install_command(optional))
    ):
        print(f"kwire: tests that need {' and '.join(optional)} will be skipped", file=sys.stderr)


def _missing(packages: dict[str, str]) -> list[str]:
    return [package for tool, package in packages.items() if not shutil.which(tool)]


def _install_command(packages: list[str]) -> str:
    return f"apt-get install -y --no-install-recommends {' '.join(packages)}"


def _may_install() -> bool:
    return not os.geteuid() and shutil.which("apt-get") is not None


def _run_as_root(*commands: str) -> bool:
    """Run commands with their output on stderr; return whether the last one succeeded."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    codes = [
        subprocess.run(
            command, shell=True, check=False, env=environment, stdout=sys.stderr
        ).returncode
        for command in commands
    ]
    return codes[-1] == 0


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except OSError as failure:
        sys.exit(
            f"kwire: cannot make {VENV}: {failure}; run this once as the owner of {ROOT}, and see "
            "that there is room"
        )

"""Lay out the root of the image, inside the build stage of packaging/Containerfile.

    image_root.py ROOT VENV    copy Python, the virtual environment and the tools to ROOT

Rules: a file is copied with the shared libraries that it is linked with, and at its own path, with
every symbolic link on the way. Modules are compiled once and their caches are never checked against
the sources, because an image's user cannot rewrite a cache. Uses only the standard library.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

TOOLS = ("sh", "bash", "cat", "chmod", "cut", "env", "hostname", "id", "ls", "rm", "sed", "sleep")
"""The commands of container libraries' start scripts, and a few to look around in a container."""
FIXED = ("/bin/sh", "/bin/bash", "/etc/ld.so.cache")
"""The paths that the first lines of scripts name, and where the loader finds libraries."""
TESTS_AND_DESKTOP = (
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "test",
    "tkinter",
    "turtledemo",
    "site-packages",
    "dist-packages",
)
"""The parts of the standard library's folder that no node needs."""
ACCOUNTS = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nappuser:x:1000:0:kwire:/home/appuser:/bin/sh\n",
    "group": "root:x:0:\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
"""The user has the id of Apache's image, which owns the volumes of that image's users."""
WRITABLE = ("var/lib/kafka/data", "etc/kafka", "etc/confluent/docker", "home/appuser")
"""The folders that the user writes: data, and start scripts that container libraries change."""
HERE = Path(__file__).resolve().parent


class Root:
    """The folder that becomes the root of the image."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, path: Path) -> None:
        """Copy a file or a folder's files, with the libraries that they are linked with."""
        real = self._follow(path)
        if real.is_dir():
            for entry in sorted(real.iterdir()):
                if entry.name != "__pycache__":
                    self.add(entry)
            self._at(real).mkdir(parents=True, exist_ok=True)
        elif not self._at(real).exists():
            self._at(real).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(real, self._at(real))
            if real.suffix == ".so" or ".so." in real.name or os.access(real, os.X_OK):
                self._add_libraries(real)

    def _at(self, path: Path) -> Path:
        return self._folder / path.relative_to("/")

    def _follow(self, path: Path) -> Path:
        """Return the path without symbolic links, and copy those that are on the way."""
        followed = Path("/")
        for place, part in enumerate(path.parts[1:], start=2):
            step = followed.parent if part == ".." else followed / part
            if not step.is_symlink():
                followed = step
                continue
            target = step.readlink()
            copy = self._at(step)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if not copy.is_symlink():
                copy.symlink_to(target)
            rest = Path(os.path.normpath(followed / target), *path.parts[place:])
            return self._follow(rest)
        return followed

    def _add_libraries(self, real: Path) -> None:
        listed = subprocess.run(["ldd", real], capture_output=True, text=True, check=False).stdout
        for word in listed.split():
            if word.startswith("/") and Path(word).exists():
                self.add(Path(word))


def lay_out(root: Root, folder: Path, venv: Path) -> None:
    """Copy everything that a node needs."""
    for tool in TOOLS:
        found = shutil.which(tool)
        if found is None:
            sys.exit(f"image_root: BASE has no {tool}; take another base image, or install it")
        root.add(Path(found))
    for path in filter(os.path.exists, (*FIXED, sys.executable)):
        root.add(Path(path))
    library = Path(sysconfig.get_path("stdlib"))
    for entry in sorted(library.iterdir()):
        if entry.name not in TESTS_AND_DESKTOP and not entry.name.startswith(("config-", "__py")):
            root.add(entry)
    root.add(venv)
    compile_all(folder, library, venv)
    shutil.copytree(HERE / "etc", folder / "etc", dirs_exist_ok=True)
    shutil.copy2(HERE / "kafka-storage", folder / "usr" / "bin")


def compile_all(folder: Path, *modules: Path) -> None:
    """Compile all modules, so that a start on a read-only file system is not slower."""
    command = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode=unchecked-hash"]
    places = [str(folder / place.relative_to("/")) for place in modules]
    subprocess.run([*command, "-s", str(folder), "-p", "/", *places], check=False)


def let_user_write(folder: Path) -> None:
    """Write the accounts, and open the folders that the image's user writes.

    The group of all files is root's, which is also the user's, and that of the other user ids
    that some platforms choose. So the owner does not matter, which a copy between stages may reset.
    """
    for name, text in ACCOUNTS.items():
        folder.joinpath("etc", name).write_text(text)
    for name in ("tmp", "mnt/shared/config", "usr/sbin", *WRITABLE):
        folder.joinpath(name).mkdir(parents=True, exist_ok=True)
    folder.joinpath("tmp").chmod(0o1777)
    for name in WRITABLE:
        for path in (folder / name, *(folder / name).rglob("*")):
            mode = path.stat().st_mode
            path.chmod(mode | (mode & 0o700) >> 3)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    lay_out(Root(target), target, Path(sys.argv[2]))
    let_user_write(target)

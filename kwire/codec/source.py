"""Builds the source of one function, line by line, and compiles it.

For each line the field that it works on is recorded, so that an error in that line can name the
field. This costs nothing while there is no error.
"""

import linecache
from collections.abc import Callable, Hashable, Mapping
from struct import Struct
from typing import cast


class Source:
    """A function under construction: its lines, and the names that they use."""

    def __init__(self, title: str, head: str, names: Mapping[str, object]) -> None:
        self.title = title
        self.lines = [head]
        self.paths = ["", ""]  # The index is the line number, which starts at 1.
        self.names: dict[str, object] = {**names, "TITLE": title}
        self._constants: dict[tuple[str, Hashable], str] = {}
        self._depth = 1
        self._count = 0

    def add(self, text: str, path: str = "") -> None:
        """Add one line, which works on the field at ``path``."""
        self.lines.append("    " * self._depth + text)
        self.paths.append(path)

    def block(self, head: str, path: str = "") -> "Source":
        """Add a line and open a block: lines added inside ``with`` are indented below it."""
        self.add(head, path)
        return self

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *error: object) -> None:
        self._depth -= 1

    def variable(self, stem: str) -> str:
        """Return a new variable name that starts with ``stem``."""
        self._count += 1
        return f"{stem}{self._count}"

    def constant(self, stem: str, key: Hashable, value: object) -> str:
        """Return the name of a global that holds ``value``; each ``key`` has one name."""
        name = self._constants.get((stem, key))
        if name is None:
            name = self._constants[stem, key] = f"{stem}_{len(self._constants)}"
            self.names[name] = value
        return name

    def unpack(self, codes: str) -> str:
        return self.constant("unpack", codes, Struct(">" + codes).unpack_from)

    def iter_unpack(self, codes: str) -> str:
        return self.constant("iterate", codes, Struct(">" + codes).iter_unpack)

    def pack(self, codes: str) -> str:
        return self.constant("pack", codes, Struct(">" + codes).pack)

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def function(self, name: str) -> Callable[..., object]:
        """Compile the function and return it; tracebacks and debuggers can show its source."""
        text = self.text()
        filename = f"<kwire {self.title} {name}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
        self.names["PATHS"] = tuple(self.paths)
        exec(compile(text, filename, "exec"), self.names)
        return cast("Callable[..., object]", self.names[name])

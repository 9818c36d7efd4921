"""Writes encoders: one short function per wire form.

Rules: a run of fixed-size fields, with the length of what follows it, is one pack. Pieces are
collected in a list that is joined once, or before each ``records`` field, which is a separate part.
A tagged field with its default value is not sent. A request must not hold a value in a field that
its version lacks, unless the field is ignorable or the value is the default, because the sender
chose the version. In a response such a field is dropped, because a handler does not know the
request's version.
"""

from contextlib import contextmanager
from struct import error as struct_error
from typing import TYPE_CHECKING, Final

from kwire.codec import primitives
from kwire.codec.layout import Field, Layout, Shape, is_flexible, layout_of
from kwire.codec.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMES: Final[dict[str, object]] = {
    "UVARINT_BYTE": primitives.UVARINT_BYTE,
    "EncodeError": primitives.EncodeError,
    "join": b"".join,
    "not_in_version": primitives.not_in_version,
    "is_null": primitives.null_given,
    "struct_error": struct_error,
    "too_long": primitives.too_long_to_write,
    "encode_error": primitives.encode_error,
    "uvarint": primitives.uvarint,
    "write_tags": primitives.write_tags,
}
_ERRORS: Final = "(struct_error, TypeError, AttributeError, UnicodeError, EncodeError)"


def encoder_source(cls: type, version: int, *, in_steps: bool = False) -> Source:
    """Return the source of ``encode(message, parts)`` for one version.

    With ``in_steps`` it is a generator that yields after each structure of an array.
    """
    source = Source(f"{cls.__name__} v{version}", "def encode(message, parts):", _NAMES)
    with source.block("try:"):
        source.add("pieces = []")
        source.add("add = pieces.append")
        drops = cls.__name__.endswith("Response")
        emit = _Emit(source, version, is_flexible(cls, version), drops, in_steps)
        emit.struct(cls, "message", "")
        emit.flush()
        with source.block("if pieces:"):
            source.add("parts.append(join(pieces))")
        if in_steps:
            source.add("yield")  # Makes it a generator even without arrays.
    with source.block(f"except {_ERRORS} as error:"):
        source.add("raise encode_error(TITLE, PATHS, error) from error")
    return source


def differs(field: Field, value: str) -> str:
    """Return an expression that is true if ``value`` differs from the field's default."""
    default = field.default
    null = f" or {value} is None" if field.maybe_null else ""
    if default is None:
        return f"{value} is not None"
    if isinstance(default, type):
        layout = layout_of(default, 0, False)
        inner = (*layout.fields, *layout.tagged, *layout.absent)
        tests = [differs(item, f"{value}.{item.name}") for item in inner]
        first = f"{value} is None or " if field.maybe_null else ""
        return "(" + first + " or ".join([*tests, f"{value}.unknown_tags"]) + ")"
    if default == [] or default is False:
        return f"({value}{null})" if null else value
    return f"{value} != {default!r}"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


class _Emit:
    """The state while an encoder is generated: its source, and the pending run.

    The run is the fixed-size fields that the next pack will write.
    """

    def __init__(
        self, source: Source, version: int, flexible: bool, drops: bool, in_steps: bool
    ) -> None:
        self.source = source
        self.version = version
        self.flexible = flexible
        self.drops = drops
        self.in_steps = in_steps
        self.sink = "add"
        self.run: list[tuple[str, str]] = []
        self.run_paths: list[str] = []

    def pack_expression(self, *more: tuple[str, str]) -> str:
        """Return one expression for the bytes of the pending run and ``more``; keep the run."""
        run = [*self.run, *more]
        codes = "".join(code for code, _ in run)
        return f"{self.source.pack(codes)}({', '.join(value for _, value in run)})"

    def put(self, expression: str, path: str = "") -> None:
        """Write a line that adds bytes.

        If they include the run, an error in the line may be about any field of the run.
        """
        fields = [*self.run_paths, path] if self.run else [path]
        self.source.add(f"{self.sink}({expression})", ", ".join(filter(None, fields)))

    def clear(self) -> None:
        self.run.clear()
        self.run_paths.clear()

    def flush(self) -> None:
        if self.run:
            self.put(self.pack_expression())
            self.clear()

    @contextmanager
    def branch(self, head: str, path: str = "") -> "Iterator[None]":
        """Open a block that also writes the pending run.

        The run stays pending for the next branch; the caller clears it after the last.
        """
        run, paths = self.run.copy(), self.run_paths.copy()
        with self.source.block(head, path):
            yield
        self.run, self.run_paths = run, paths

    def struct(self, cls: type, value: str, path: str) -> None:
        layout = layout_of(cls, self.version, self.flexible)
        for field in layout.absent:
            if not (field.ignorable or self.drops):
                with self.source.block(f"if {differs(field, f'{value}.{field.name}')}:"):
                    self.source.add("not_in_version()", _join(path, field.name))
        for field in layout.fields:
            self.value(field, f"{value}.{field.name}", _join(path, field.name))
        if self.flexible:
            self.tags(layout, value, path)

    def value(self, field: Field, value: str, path: str) -> None:
        shape = field.shape
        if shape.form == "fixed":
            self.run.append((shape.code, value))
            self.run_paths.append(path)
            return
        if shape.form == "struct" and not field.nullable:
            self.structure(shape, value, path)
            return
        local = self.source.variable("v")
        self.source.add(f"{local} = {value}", path)
        with self.branch(f"if {local} is None:"):
            if field.nullable:
                self.null(field, path)
            else:
                self.source.add("is_null()", path)
        with self.branch("else:"):
            self.present(field, local, path)
        self.clear()

    def null(self, field: Field, path: str) -> None:
        if field.shape.form == "struct":
            mark = ("b", "-1" if field.tag is None else "0")
        elif field.compact:
            mark = ("B", "0")
        else:
            mark = ("h" if field.shape.form == "string" else "i", "-1")
        self.put(self.pack_expression(mark), path)

    def present(self, field: Field, value: str, path: str) -> None:
        form = field.shape.form
        if form == "struct":
            self.run.append(("b", "1"))
            self.structure(field.shape, value, path)
            self.flush()
        elif form == "array":
            self.array(field, value, path)
        else:
            self.variable_size(form, field.compact, value, path)

    def structure(self, shape: Shape, value: str, path: str) -> None:
        assert shape.cls is not None
        local = self.source.variable("v")
        self.source.add(f"{local} = {value}", path)
        self.struct(shape.cls, local, path)

    def length(self, value: str, code: str, compact: bool, path: str) -> str:
        """Write the pending run and then the length of ``value``; return the length's variable."""
        count = self.source.variable("n")
        if not compact:
            self.source.add(f"{count} = len({value})", path)
            self.put(self.pack_expression((code, count)), path)
            self.clear()
            return count
        self.source.add(f"{count} = len({value}) + 1", path)
        if not self.run:
            self.put(f"UVARINT_BYTE[{count}] if {count} < 128 else uvarint({count})", path)
            return count
        with self.source.block(f"if {count} < 128:"):
            self.put(self.pack_expression(("B", count)), path)
        with self.source.block("else:"):
            self.put(f"{self.pack_expression()} + uvarint({count})", path)
        self.clear()
        return count

    def variable_size(self, form: str, compact: bool, value: str, path: str) -> None:
        """Write text, bytes or record batches: a length, then that many bytes."""
        if form == "string":
            text = self.source.variable("s")
            self.source.add(f"{text} = {value}.encode()", path)
            count = self.length(text, "h", compact, path)
            if compact:
                with self.source.block(f"if {count} > 32768:"):
                    self.source.add(f"too_long({count} - 1)", path)
            self.put(text, path)
            return
        self.length(value, "i", compact, path)
        if form == "bytes" or self.sink != "add":
            self.put(value, path)
            return
        self.source.add("parts.append(join(pieces))")
        self.source.add("pieces.clear()")
        with self.source.block(f"if len({value}):", path):
            self.source.add(f"parts.append({value})")

    def array(self, field: Field, value: str, path: str) -> None:
        element = field.shape.element
        assert element is not None
        self.length(value, "i", field.compact, path)
        item = self.source.variable("e")
        if element.form == "fixed":
            pack = self.source.pack(element.code)
            self.put(f"join([{pack}({item}) for {item} in {value}])", path)
            return
        if element.cls is not None and self.plain(element.cls):
            layout = layout_of(element.cls, self.version, self.flexible)
            self.run = [(inner.shape.code, f"{item}.{inner.name}") for inner in layout.fields]
            self.put(f"join([{self.pack_expression()} for {item} in {value}])", path)
            self.clear()
            return
        with self.source.block(f"for {item} in {value}:", path):
            if element.cls is not None:
                self.struct(element.cls, item, path)
                self.flush()
            else:
                self.variable_size(element.form, field.compact, item, path)
            if self.in_steps:
                self.source.add("yield")

    def plain(self, cls: type) -> bool:
        """Return whether all values of a structure can be written by one pack."""
        layout = layout_of(cls, self.version, self.flexible)
        lossless = self.drops or all(field.ignorable for field in layout.absent)
        return bool(layout.codes) and not self.flexible and lossless

    def tags(self, layout: Layout, value: str, path: str) -> None:
        """Write tagged fields; usually there are none, which is a zero byte in the run."""
        tests = [differs(field, f"{value}.{field.name}") for field in layout.tagged]
        with self.branch(f"if {' or '.join([*tests, f'{value}.unknown_tags'])}:", path):
            self.flush()
            tags = self.source.variable("t")
            self.source.add(f"{tags} = list({value}.unknown_tags)", path)
            for field, test in zip(layout.tagged, tests, strict=True):
                with self.source.block(f"if {test}:", path):
                    self.tag(field, tags, f"{value}.{field.name}", _join(path, field.name))
            self.source.add(f"write_tags({self.sink}, {tags})", path)
        with self.branch("else:"):
            self.put(self.pack_expression(("B", "0")) if self.run else r'b"\0"', path)
        self.clear()

    def tag(self, field: Field, tags: str, value: str, path: str) -> None:
        """Write one tagged field to a separate list, because its size precedes it."""
        inner = self.source.variable("p")
        self.source.add(f"{inner} = []")
        outer, self.sink = self.sink, f"{inner}.append"
        self.value(field, value, path)
        self.flush()
        self.sink = outer
        self.source.add(f"{tags}.append(({field.tag}, join({inner})))", path)

"""Writes decoders: one short function per wire form.

Rules: one unpack reads a run of fixed-size fields, and the length of the field after it; every
length is checked against the remaining bytes before it is used; objects are created without
``__init__``; one ``iter_unpack`` reads an array of fixed-size structures.
"""

from itertools import repeat
from struct import calcsize
from struct import error as struct_error
from typing import Final

from kwire.codec import primitives
from kwire.codec.layout import Field, Layout, Shape, has_records, is_flexible, layout_of
from kwire.codec.source import Source

_NAMES: Final[dict[str, object]] = {
    "new": object.__new__,
    "repeat": repeat,
    "struct_error": struct_error,
    "decode_error": primitives.decode_error,
    "is_null": primitives.is_null,
    "too_long": primitives.too_long,
    "uvarint_rest": primitives.uvarint_rest,
    "read_tag": primitives.read_tag,
    "unknown_tag": primitives.unknown_tag,
    "unknown_tags": primitives.unknown_tags,
    "MalformedError": primitives.MalformedError,
}


def decoder_source(cls: type, version: int, *, in_steps: bool = False) -> Source:
    """Return the source of ``decode(buf, pos) -> (message, pos)`` for one version.

    With ``in_steps`` it is a generator that yields after each structure of an array and returns the
    same result.
    """
    flexible = is_flexible(cls, version)
    source = Source(f"{cls.__name__} v{version}", "def decode(buf, pos):", _NAMES)
    with source.block("try:"):
        viewed = has_records(cls, version, flexible)
        emit = _Emit(source, version, flexible, viewed=viewed, in_steps=in_steps)
        emit.prologue()
        instance = emit.struct(cls, "")
        emit.flush()
        if in_steps:
            source.add("yield")  # Makes it a generator even without arrays.
        source.add(f"return {instance}, pos")
    with source.block("except (struct_error, IndexError, UnicodeError, MalformedError) as error:"):
        source.add("raise decode_error(TITLE, PATHS, error) from error")
    return source


def default_lines(source: Source, target: str, field: Field) -> None:
    """Write lines that set ``target`` to the field's default: a new object if it is mutable."""
    if not isinstance(field.default, type):
        source.add(f"{target} = {field.default!r}")
        return
    instance = source.variable("o")
    source.add(f"{target} = {instance} = new({_class(source, field.default)})")
    layout = layout_of(field.default, 0, False)
    for inner in (*layout.fields, *layout.tagged, *layout.absent):
        default_lines(source, f"{instance}.{inner.name}", inner)
    source.add(f"{instance}.unknown_tags = ()")


def _class(source: Source, cls: type) -> str:
    return source.constant(cls.__name__, cls, cls)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


class _Emit:
    """The state while a decoder is generated: its source, and the pending run.

    The run is the fixed-size fields that the next unpack will read.
    """

    def __init__(
        self, source: Source, version: int, flexible: bool, *, viewed: bool, in_steps: bool
    ) -> None:
        self.source = source
        self.version = version
        self.flexible = flexible
        self.viewed = viewed
        self.in_steps = in_steps
        self.run: list[tuple[str, str]] = []

    def prologue(self) -> None:
        """Write the conversion of the input: to a memoryview if it may hold records, else to bytes.

        Bytes are faster to read from.
        """
        kind = "memoryview" if self.viewed else "bytes"
        with self.source.block(f"if type(buf) is not {kind}:"):
            self.source.add(f"buf = {kind}(buf)")
        self.source.add("size = len(buf)")

    def flush(self, path: str = "") -> None:
        """Write the pending run of fields as one unpack."""
        if not self.run:
            return
        codes = "".join(code for code, _ in self.run)
        targets = ", ".join(target for _, target in self.run)
        if codes == "B":
            self.source.add(f"{targets} = buf[pos]", path)
        else:
            comma = "," if len(self.run) == 1 else ""
            self.source.add(f"{targets}{comma} = {self.source.unpack(codes)}(buf, pos)", path)
        self.source.add(f"pos += {calcsize('>' + codes)}")
        self.run.clear()

    def struct(self, cls: type, path: str) -> str:
        """Write the reads of a structure; return its variable, complete after the next flush."""
        self.flush(path)
        instance = self.source.variable("o")
        layout = layout_of(cls, self.version, self.flexible)
        self.source.add(f"{instance} = new({_class(self.source, cls)})")
        self.fill(instance, layout)
        for field in layout.fields:
            self.value(field, f"{instance}.{field.name}", _join(path, field.name))
        if self.flexible:
            self.tags(instance, layout, path)
        return instance

    def fill(self, instance: str, layout: Layout) -> None:
        """Write the defaults of fields that this version lacks or that a sender may omit."""
        for field in (*layout.absent, *layout.tagged):
            default_lines(self.source, f"{instance}.{field.name}", field)
        self.source.add(f"{instance}.unknown_tags = ()")

    def value(self, field: Field, target: str, path: str) -> None:
        shape = field.shape
        if shape.form == "fixed":
            self.run.append((shape.code, target))
        elif shape.form == "struct":
            self.structure(field, target, path)
        elif shape.form == "array":
            self.array(field, target, path)
        else:
            self.variable_size(shape, field.nullable, field.compact, target, path)

    def length(self, compact: bool, code: str, nullable: bool, target: str, path: str) -> str:
        """Write the read of a length and the handling of null; return the length's variable.

        No block is left open. On the wire a compact length is one higher than its value, and 0 is
        null.
        """
        count = self.source.variable("n")
        self.run.append(("B" if compact else code, count))
        self.flush(path)
        if compact:
            with self.source.block(f"if {count} > 127:"):
                self.source.add(f"{count}, pos = uvarint_rest(buf, pos, {count})", path)
            self.source.add(f"{count} -= 1")
        with self.source.block(f"if {count} < 0:"):
            self.source.add(f"{target} = None" if nullable else "is_null()", path)
        return count

    def variable_size(
        self, shape: Shape, nullable: bool, compact: bool, target: str, path: str
    ) -> None:
        """Write the read of text, bytes or record batches: a length, then that many bytes."""
        count = self.length(compact, "h" if shape.form == "string" else "i", nullable, target, path)
        content = "buf[pos:end]"
        if shape.form == "string":
            content = f'str({content}, "utf-8")' if self.viewed else f"{content}.decode()"
        elif shape.form == "bytes" and self.viewed:
            content = f"bytes({content})"
        limit = f" or {count} > 32767" if shape.form == "string" and compact else ""
        with self.source.block("else:"):
            self.source.add(f"end = pos + {count}")
            with self.source.block(f"if end > size{limit}:"):
                self.source.add(f"too_long({count}, size - pos)", path)
            self.source.add(f"{target} = {content}", path)
            self.source.add("pos = end")

    def structure(self, field: Field, target: str, path: str) -> None:
        cls = field.shape.cls
        assert cls is not None
        if not field.nullable:
            self.flush(path)
            instance = self.struct(cls, path)
            self.flush(path)
            self.source.add(f"{target} = {instance}")
            return
        marker = self.source.variable("n")
        self.run.append(("b", marker))
        self.flush(path)
        with self.source.block(f"if {marker} < {0 if field.tag is None else 1}:"):
            self.source.add(f"{target} = None")
        with self.source.block("else:"):
            instance = self.struct(cls, path)
            self.flush(path)
            self.source.add(f"{target} = {instance}")

    def array(self, field: Field, target: str, path: str) -> None:
        element = field.shape.element
        assert element is not None
        count = self.length(field.compact, "i", field.nullable, target, path)
        with self.source.block("else:"):
            with self.source.block(f"if {count} > size - pos:"):
                self.source.add(f"too_long({count}, size - pos)", path)
            if element.form == "fixed":
                self.numbers(element, count, target, path)
            elif element.cls is not None:
                self.structures(element.cls, count, target, path)
            else:
                self.loop(field, element, count, target, path)

    def numbers(self, element: Shape, count: str, target: str, path: str) -> None:
        """Write the read of an array of fixed-size values: one ``iter_unpack``."""
        self.source.add(f"end = pos + {count} * {calcsize('>' + element.code)}")
        with self.source.block("if end > size:"):
            self.source.add(f"too_long({count}, size - pos)", path)
        iterate = self.source.iter_unpack(element.code)
        self.source.add(f"{target} = [item for item, in {iterate}(buf[pos:end])]", path)
        self.source.add("pos = end")

    def loop(self, field: Field, element: Shape, count: str, target: str, path: str) -> None:
        """Write the read of an array of text or bytes."""
        items = self.source.variable("a")
        self.source.add(f"{target} = {items} = []")
        with self.source.block(f"for _ in range({count}):"):
            self.variable_size(element, False, field.compact, "item", path)
            self.source.add(f"{items}.append(item)")
            self.step()

    def structures(self, cls: type, count: str, target: str, path: str) -> None:
        """Write the read of an array of structures: at once if of fixed size, else one by one."""
        layout = layout_of(cls, self.version, self.flexible)
        if not layout.codes:
            self.one_by_one(cls, count, target, path)
            return
        width = calcsize(">" + layout.codes) + self.flexible
        self.source.add(f"end = pos + {count} * {width}")
        if self.flexible:
            # The last byte of each structure is its tag count; the shortcut requires that all are
            # 0.
            tags = f"bytes(buf[pos + {width - 1}:end:{width}])"
            with self.source.block(f"if end <= size and {tags}.count(0) == {count}:"):
                self.at_once(layout, count, target, path)
            with self.source.block("else:"):
                self.one_by_one(cls, count, target, path)
            return
        with self.source.block("if end > size:"):
            self.source.add(f"too_long({count}, size - pos)", path)
        self.at_once(layout, count, target, path)

    def at_once(self, layout: Layout, count: str, target: str, path: str) -> None:
        assert layout.codes
        instance = self.source.variable("o")
        items = self.source.variable("a")
        name = _class(self.source, layout.cls)
        iterate = self.source.iter_unpack(layout.codes + "x" * self.flexible)
        self.source.add(f"{target} = {items} = list(map(new, repeat({name}, {count})))")
        # The fields are the loop's target, so each value is stored without a variable in between.
        targets = "".join(f"{instance}.{field.name}, " for field in layout.fields)
        pairs = f"zip({items}, {iterate}(buf[pos:end]))"
        with self.source.block(f"for {instance}, ({targets}) in {pairs}:", path):
            self.fill(instance, layout)
            self.step()
        self.source.add("pos = end")

    def one_by_one(self, cls: type, count: str, target: str, path: str) -> None:
        items = self.source.variable("a")
        self.source.add(f"{target} = {items} = []")
        with self.source.block(f"for _ in range({count}):"):
            instance = self.struct(cls, path)
            self.flush(path)
            self.source.add(f"{items}.append({instance})")
            self.step()

    def step(self) -> None:
        """Write the end of one round of a loop."""
        if self.in_steps:
            self.source.add("yield")

    def tags(self, instance: str, layout: Layout, path: str) -> None:
        """Write the read of tagged fields; usually there is only their count, 0."""
        count = self.source.variable("t")
        self.run.append(("B", count))
        self.flush(path)
        with self.source.block(f"if {count}:"):
            with self.source.block(f"if {count} > 127:"):
                self.source.add(f"{count}, pos = uvarint_rest(buf, pos, {count})", path)
            if not layout.tagged:
                call = f"unknown_tags(buf, pos, {count})"
                self.source.add(f"{instance}.unknown_tags, pos = {call}", path)
                return
            self.known_tags(instance, layout, count, path)

    def known_tags(self, instance: str, layout: Layout, count: str, path: str) -> None:
        """Write the read of fields with known tags; like Kafka, ignore their announced sizes."""
        tag, width = self.source.variable("tag"), self.source.variable("n")
        unknown = self.source.variable("a")
        self.source.add(f"{unknown} = []")
        with self.source.block(f"for _ in range({count}):"):
            self.source.add(f"{tag}, {width}, pos = read_tag(buf, pos)", path)
            word = "if"
            for field in layout.tagged:
                with self.source.block(f"{word} {tag} == {field.tag}:"):
                    self.value(field, f"{instance}.{field.name}", _join(path, field.name))
                    self.flush(path)
                word = "elif"
            with self.source.block("else:"):
                self.source.add(f"field, pos = unknown_tag(buf, pos, {tag}, {width})", path)
                self.source.add(f"{unknown}.append(field)")
        self.source.add(f"{instance}.unknown_tags = tuple({unknown})")

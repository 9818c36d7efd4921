"""Writes functions for the usual shape of a message, in which nothing optional is sent.

The general functions (:mod:`kwire.codec.emit_decode`, :mod:`kwire.codec.emit_encode`) handle every
shape; these handle one, without objects, and cost a third as much. In the usual shape some arrays,
which the caller names, have one element, others a few or none, and the rest none; what may be null
is null, except for texts that the caller names, and no structure has tagged fields but the one that
the caller names. Versions before the flexible ones differ in the lengths, which have a fixed size,
and have no tagged fields.
"""

from collections.abc import Callable
from itertools import groupby
from struct import calcsize
from struct import error as struct_error
from typing import Any, Final, TypeAlias, cast

from kwire.codec.compile import Part
from kwire.codec.layout import Field, Layout, has_records, is_flexible, layout_of
from kwire.codec.primitives import Buffer, MalformedError, uvarint, uvarint_rest
from kwire.codec.schema import fields as fields_of
from kwire.codec.source import Source

# Any: the values of a message, whose types depend on its table.
Values: TypeAlias = tuple[Any, ...]
FlatDecoder: TypeAlias = Callable[[Buffer, int], Values | None]
FlatEncoder: TypeAlias = Callable[..., list[Part]]

_NAMES: Final[dict[str, object]] = {
    "MalformedError": MalformedError,
    "struct_error": struct_error,
    "uvarint_rest": uvarint_rest,
}
Names: TypeAlias = tuple[str, ...]
_decoders: Final[dict[tuple[type, int, Names, Names, Names, Names], FlatDecoder]] = {}
_encoders: Final[dict[tuple[type, int, Names, Names], FlatEncoder]] = {}
ELEMENTS_MAX: Final = 64
"""The largest total number of elements in arrays of a few elements."""
_LENGTH_MAX: Final = 127
"""The largest length that takes one byte; longer strings are unusual."""


def flat_decoder(
    cls: type, version: int, ones: Names, few: Names, texts: Names = (), optional: Names = ()
) -> FlatDecoder:
    """Return a function that reads a message of a version at a position.

    It returns the values in the order of the table, or None if the message is damaged or does not
    have the usual shape: one element in the arrays named ``ones``, whose values replace the array,
    and up to :data:`ELEMENTS_MAX` in those named ``few``, which become lists of tuples. The string
    fields named ``texts`` may be null or not. The fields named ``optional`` have their defaults in
    versions without them; if they are tagged fields, each structure may have one of them.
    """
    key = cls, version, ones, few, texts, optional
    if key not in _decoders:
        _decoders[key] = _compile_decoder(*key)
    return _decoders[key]


def _compile_decoder(
    cls: type, version: int, ones: Names, few: Names, texts: Names, optional: Names
) -> FlatDecoder:
    title = f"{cls.__name__} v{version}"
    source = Source(title, "def decode_flat(buf, pos):", _NAMES)
    flexible = is_flexible(cls, version)
    _add_decoder(source, _Decoding(source, version, flexible, ones, few, texts, optional), cls)
    decode = cast("FlatDecoder", source.function("decode_flat"))
    if not few:
        return decode
    single = Source(title, "def decode_single(buf, pos):", {**_NAMES, "decode_flat": decode})
    other = "decode_flat(buf, start)"
    decoding = _Decoding(single, version, flexible, ones, few, texts, optional, other)
    _add_decoder(single, decoding, cls)
    return cast("FlatDecoder", single.function("decode_single"))


def _add_decoder(source: Source, emit: "_Decoding", cls: type) -> None:
    if emit.is_single:
        source.add("start = pos")
    with source.block("try:"):
        emit.struct(cls)
        emit.flush()
        if not emit.flexible:  # Tags would come last, and reading them fails if the buffer ends.
            with source.block("if pos > len(buf):"):
                source.add(f"return {emit.other}")
        source.add(f"return ({', '.join(emit.values)},)")
    with source.block("except (struct_error, IndexError, UnicodeError, MalformedError):"):
        source.add(f"return {emit.other}")


class _Decoding:
    """The state while a decoder is generated: its source, and the fields of the next unpack."""

    def __init__(
        self,
        source: Source,
        version: int,
        flexible: bool,
        ones: Names,
        few: Names,
        texts: Names,
        optional: Names,
        other: str = "None",
    ) -> None:
        self.source = source
        self.other = other
        """The result for another shape. If it is not None, this function reads the shape in which
        all arrays have one element, which is the most common one and takes half as long.
        """
        self.version = version
        self.flexible = flexible
        self.ones = ones
        self.few = few
        self.texts = texts
        self.optional = optional
        self.is_nested = False
        """True after the first array of a few elements."""
        self.run: list[tuple[str, str]] = []
        self.unusual: list[str] = []
        """Conditions on the run under which the shape is another one."""
        self.values: list[str] = []

    @property
    def is_single(self) -> bool:
        return self.other != "None"

    def struct(self, cls: type) -> None:
        layout = layout_of(cls, self.version, self.flexible)
        fields = {field.name: field for field in layout.fields}
        others = {each.name: each for each in (*layout.tagged, *layout.absent)}
        tagged: list[tuple[Field, Names]] = []
        for attribute in fields_of(cls):
            name = attribute.name
            if name in fields:
                self.value(fields[name])
            elif name in self.optional:
                field = others[name]
                leaves = self.leaves(field)
                if field in layout.absent:
                    self.values += [repr(leaf.default) for leaf in leaves]
                else:
                    names = tuple(self.source.variable("v") for _ in leaves)
                    self.values += names
                    tagged.append((field, names))
        if tagged:
            self.tagged_field(*tagged)
        elif self.flexible:
            self.number("B", "t", "{}")

    def tagged_field(self, sent: tuple[Field, Names]) -> None:
        """Read the only tagged field of a structure, or set its values to their defaults."""
        field, names = sent
        leaves = self.leaves(field)
        targets = "".join(f"{name}, " for name in names)
        count, codes = self.number("B", "t", "{} > 1"), "".join(leaf.shape.code for leaf in leaves)
        is_struct = field.shape.form == "struct"
        if is_struct:
            codes += "B"
        self.flush()
        with self.source.block(f"if {count}:"):
            unpack = self.source.unpack("BB" + codes)
            tags = "tags, " if is_struct else ""
            self.source.add(f"tag, size, {targets}{tags}= {unpack}(buf, pos)")
            is_other = f"tag != {field.tag} or size != {calcsize('>' + codes)}"
            with self.source.block(f"if {is_other}{' or tags' if is_struct else ''}:"):
                self.source.add(f"return {self.other}")
            self.source.add(f"pos += {calcsize('>BB' + codes)}")
        with self.source.block("else:"):
            defaults = "".join(f"{leaf.default!r}, " for leaf in leaves)
            self.source.add(f"{targets}= {defaults}")

    def leaves(self, field: Field) -> tuple[Field, ...]:
        """Return a field of fixed size, or the fields of a structure of such fields."""
        if field.shape.cls is None:
            return (field,)
        layout = layout_of(field.shape.cls, self.version, self.flexible)
        return layout.fields + layout.absent

    def number(self, code: str, stem: str, unusual: str) -> str:
        """Add a number to the run, and the condition under which it shows another shape."""
        name = self.source.variable(stem)
        self.run.append((code, name))
        self.unusual.append(unusual.format(name))
        return name

    def count(self, code: str, elements: int | None) -> str:
        """Add a number of elements or bytes, which shows another shape unless it is ``elements``.

        ``code``: the code of the number before the flexible versions.
        ``elements``: None if the value is null.
        """
        usual = -1 if elements is None else elements
        if self.flexible:
            code, usual = "B", usual + 1
        return self.number(code, "n", f"{{}} != {usual}" if usual else "{}")

    def flush(self) -> None:
        """Write the run as one unpack, and the check of its shape."""
        if not self.run:
            return
        codes = "".join(code for code, _ in self.run)
        unusual = " or ".join(self.unusual)
        if codes == "B" and unusual == self.run[0][1]:
            unusual = "buf[pos]"
        else:
            names = "".join(f"{name}, " for _, name in self.run)
            self.source.add(f"{names}= {self.source.unpack(codes)}(buf, pos)")
        if unusual:
            with self.source.block(f"if {unusual}:"):
                self.source.add(f"return {self.other}")
        self.source.add(f"pos += {calcsize('>' + codes)}")
        self.run, self.unusual = [], []

    def value(self, field: Field) -> None:
        shape = field.shape
        if field.name in self.few:
            self.elements(field)
        elif shape.form == "array":
            is_one = field.name in self.ones
            self.count("i", 1 if is_one else None if field.nullable else 0)
            if is_one:
                self.struct(_element(field))
        elif shape.form == "string" and field.nullable:
            if field.name in self.texts:
                self.nullable_text()
            else:
                self.count("h", None)
        elif shape.form in ("string", "records"):
            self.variable_size(shape.form)
        else:
            assert shape.form == "fixed", field.name
            name = self.source.variable("v")
            self.run.append((shape.code, name))
            self.values.append(name)

    def elements(self, field: Field) -> None:
        """Read an array of up to a few elements in a loop, or a single element if ``is_single``."""
        if self.is_single:
            self.count("i", 1)
            values, self.values = self.values, []
            self.struct(_element(field))
            self.values = [*values, f"[({', '.join(self.values)},)]"]
            return
        if self.flexible:
            added = 1
            count = self.number("B", "n", f"not 0 < {{}} <= {ELEMENTS_MAX + added}")
            length = f"{count} - {added}"
        else:
            added = 0
            count = length = self.number("i", "n", f"not 0 <= {{}} <= {ELEMENTS_MAX}")
        self.flush()
        if self.is_nested:
            self.source.add(f"left -= {length}")
            with self.source.block("if left < 0:"):
                self.source.add("return None")
        else:
            self.source.add(f"left = {ELEMENTS_MAX + added} - {count}")
            self.is_nested = True
        elements, values = self.source.variable("e"), self.values
        self.source.add(f"{elements} = []")
        with self.source.block(f"for _ in range({length}):"):
            self.values = []
            self.struct(_element(field))
            self.flush()
            self.source.add(f"{elements}.append(({', '.join(self.values)},))")
        self.values = [*values, elements]

    def nullable_text(self) -> None:
        if self.flexible:
            count, is_null = self.number("B", "n", f"{{}} > {_LENGTH_MAX}"), "not {}"
        else:
            count, is_null = self.number("h", "n", "{} < -1"), "{} < 0"
        self.flush()
        name = self.source.variable("v")
        with self.source.block(f"if {is_null.format(count)}:"):
            self.source.add(f"{name} = None")
        with self.source.block("else:"):
            self.source.add(f"end = pos + {count}{self.less_added}")
            self.source.add(f'{name} = str(buf[pos:end], "utf-8")')
            self.source.add("pos = end")
        self.values.append(name)

    @property
    def less_added(self) -> str:
        """The end of an expression that begins with a length that is sent, for the real length."""
        return " - 1" if self.flexible else ""

    def variable_size(self, form: str) -> None:
        name = self.source.variable("v")
        is_text = form == "string"
        if self.flexible:
            unusual = f"not 0 < {{}} <= {_LENGTH_MAX}" if is_text else "not {}"
            count = self.number("B", "n", unusual)
        else:
            count = self.number("h" if is_text else "i", "n", "{} < 0")
        self.flush()
        if self.flexible and not is_text:
            with self.source.block(f"if {count} > 127:"):
                self.source.add("more = buf[pos]")
                with self.source.block("if more > 127:"):
                    self.source.add(f"{count}, pos = uvarint_rest(buf, pos, {count})")
                with self.source.block("else:"):
                    self.source.add(f"{count} += (more << 7) - 128")
                    self.source.add("pos += 1")
        self.source.add(f"end = pos + {count}{self.less_added}")
        content = "buf[pos:end]"  # If the buffer ends earlier, the next read fails.
        self.source.add(f"{name} = " + (f'str({content}, "utf-8")' if is_text else content))
        self.source.add("pos = end")
        self.values.append(name)


def _element(field: Field) -> type:
    """Return the class of the structures in an array."""
    element = field.shape.element
    assert element is not None, field.name
    assert element.cls is not None, field.name
    return element.cls


def flat_encoder(cls: type, version: int, few: Names, names: Names) -> FlatEncoder:
    """Return a function that builds the parts of a response's frame.

    Its arguments are the correlation id and the values of the fields named ``names``, in wire order
    (without those that the version lacks), except that the throttle time comes last; all other
    fields have their defaults. The value of an array named in ``few`` is a list of tuples, one per
    element. The value of any other array is None or empty. The value of a records field is None,
    bytes, or a region of a file, which becomes a separate part.
    """
    key = cls, version, few, names
    if key not in _encoders:
        _encoders[key] = _compile_encoder(cls, version, few, names)
    return _encoders[key]


def _compile_encoder(cls: type, version: int, few: Names, names: Names) -> FlatEncoder:
    title = f"{cls.__name__} v{version}"
    values = sorted(_values_of(cls, version, few, names), key=_THROTTLE_TIME.__eq__)
    arguments = ", ".join(("correlation_id", *values))
    source = Source(title, f"def encode_flat({arguments}):", _ENCODER_NAMES)
    flexible = is_flexible(cls, version)
    _add_encoder(source, _Encoding(source, version, flexible, few, names), cls)
    encode = cast("FlatEncoder", source.function("encode_flat"))
    if not few:
        return encode
    single = Source(
        title, f"def encode_single({arguments}):", {**_ENCODER_NAMES, "encode_flat": encode}
    )
    targets = _single_values_of(cls, version, few, names)
    with single.block("try:"):
        single.add(f"{targets} = {', '.join(_values_of(cls, version, few, names))}")
    with single.block("except ValueError:"):
        single.add(f"return encode_flat({arguments})")
    _add_encoder(single, _Encoding(single, version, flexible, few, names, is_single=True), cls)
    return cast("FlatEncoder", single.function("encode_single"))


def _add_encoder(source: Source, emit: "_Encoding", cls: type) -> None:
    sends_records = has_records(cls, emit.version, emit.flexible)
    codes, tags = ("iiB", ", 0") if emit.flexible else ("ii", "")
    head_size = calcsize(f">{codes}") - 4
    if sends_records:
        source.add(f"parts, size = [], {head_size}")
    emit.struct(cls)
    emit.flush()
    head = source.pack(codes)
    if not sends_records:
        source.add(f"return [{head}(len(body) + {head_size}, correlation_id{tags}) + body]")
        return
    source.add("size += len(body)")
    source.add("parts.append(body)")
    source.add(f"parts[0] = {head}(size, correlation_id{tags}) + parts[0]")
    source.add("return parts")


def _single_values_of(cls: type, version: int, few: Names, names: Names) -> str:
    """Return the assignment targets for the values, whose lists have one element each."""
    targets = []
    for field in _sent_fields(cls, version):
        if field.name in few:
            targets.append(f"[({_single_values_of(_element(field), version, few, names)})]")
        elif field.name in names:
            targets.append(field.name)
    return "".join(f"{target}, " for target in targets)


def _values_of(cls: type, version: int, few: Names, names: Names) -> list[str]:
    """Return the names of the fields of a structure that have a value."""
    fields = _sent_fields(cls, version)
    return [field.name for field in fields if field.name in (*few, *names)]


def _sent_fields(cls: type, version: int) -> tuple[Field, ...]:
    """Return the fields without tags; which they are does not depend on their encoding."""
    return layout_of(cls, version, True).fields


_THROTTLE_TIME: Final = "throttle_time_ms"
_ENCODER_NAMES: Final[dict[str, object]] = {"uvarint": uvarint}
_PLUS_ONE: Final = {"-1": "0", "0": "1", "1": "2"}
"""Constants that flexible versions send increased by one."""
_TEXT: Final = "text"
"""The code of a text in a run, which follows its length."""


class _Encoding:
    """The state while an encoder is generated: its source, and the values of the next pack."""

    def __init__(
        self,
        source: Source,
        version: int,
        flexible: bool,
        few: Names,
        names: Names,
        *,
        is_single: bool = False,
    ) -> None:
        self.source = source
        self.is_single = is_single
        """True if all arrays have one element, whose values are variables already."""
        self.version = version
        self.flexible = flexible
        self.few = few
        self.names = names
        self.assign = "="
        self.run: list[tuple[str, str]] = []

    def struct(self, cls: type) -> None:
        layout: Layout = layout_of(cls, self.version, self.flexible)
        for field in layout.fields:
            self.value(field)
        if self.flexible:
            self.run.append(("B", "0"))

    def flush(self) -> None:
        """Write the run as the next part of the frame."""
        if not self.run and self.assign != "=":
            return
        pieces = []
        for is_text, group in groupby(self.run, lambda item: item[0] == _TEXT):
            items = list(group)
            if is_text:
                pieces += [value for _, value in items]
            else:
                codes = "".join(code for code, _ in items)
                values = ", ".join(value for _, value in items)
                is_end = set(self.run) == {("B", "0")}
                pieces.append(
                    repr(bytes(len(items))) if is_end else f"{self.source.pack(codes)}({values})"
                )
        self.source.add(f"body {self.assign} {' + '.join(pieces)}")
        self.run, self.assign = [], "+="

    def value(self, field: Field) -> None:
        shape, has_value = field.shape, field.name in self.names
        if shape.form == "fixed":
            self.run.append((shape.code, field.name if has_value else repr(field.default)))
        elif field.name in self.few:
            self.elements(field)
        elif shape.form == "array":
            if not has_value:
                self.count("i", "0")
            elif self.flexible:
                self.run.append(("B", f"0 if {field.name} is None else 1"))
            else:
                self.run.append(("i", f"-1 if {field.name} is None else 0"))
        elif has_value and shape.form == "records":
            self.records(field.name)
        elif shape.form == "struct":
            assert field.default is None, field.name
            self.run.append(("b", "-1"))
        elif has_value:
            assert shape.form == "string", field.name
            self.source.add(f"{field.name} = {field.name}.encode()")
            self.count("h", f"len({field.name})")
            self.run.append((_TEXT, field.name))
        else:
            assert field.nullable, field.name
            assert field.default is None, field.name
            self.count("h", "-1")

    def count(self, code: str, value: str) -> None:
        """Add the number of elements or bytes, -1 for null.

        ``code``: the code of the number before the flexible versions.
        """
        if self.flexible:
            code, value = "B", _PLUS_ONE.get(value, f"{value} + 1")
        self.run.append((code, value))

    def records(self, name: str) -> None:
        """Write the length of records, and the records or a part for their region."""
        add, run, assign = self.source.add, self.run, self.assign
        with self.source.block(f"if {name} is None:"):
            self.run = [*run]
            self.count("i", "0")
            self.flush()
        with self.source.block("else:"):
            self.run, self.assign = run, assign
            add(f"length = len({name})")
            if self.flexible:
                self.varint_length()
            else:
                self.run = [*run, ("i", "length")]
                self.flush()
            with self.source.block(f"if type({name}) is bytes:"):
                add(f"body += {name}")
            with self.source.block("else:"):
                add(f"parts += (body, {name})")
                add("size += len(body) + length")
                add("body = b''")

    def varint_length(self) -> None:
        """Write the run and one more than the variable ``length``."""
        run, assign = self.run, self.assign
        self.source.add("sent = length + 1")
        with self.source.block("if 127 < sent < 16384:"):
            self.run = [*run, ("B", "sent & 127 | 128"), ("B", "sent >> 7")]
            self.flush()
        with self.source.block("else:"):
            self.run, self.assign = run, assign
            self.flush()
            self.source.add("body += uvarint(sent)")

    def elements(self, field: Field) -> None:
        """Write an array of a few elements in a loop, or a single element without one."""
        if self.is_single:
            self.count("i", "1")
            self.struct(_element(field))
            return
        self.count("i", f"len({field.name})")
        self.flush()
        cls = _element(field)
        values = "".join(f"{n}, " for n in _values_of(cls, self.version, self.few, self.names))
        with self.source.block(f"for {values}in {field.name}:"):
            self.struct(cls)
            self.flush()

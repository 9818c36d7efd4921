"""Writes functions for the usual shape of a message, in which nothing optional is sent.

The general functions (:mod:`kwire.codec.emit_decode`, :mod:`kwire.codec.emit_encode`) handle every
shape; these handle one, without objects, and cost a third as much. In the usual shape some arrays,
which the caller names, have one element and all others none, texts that may be null are null, and
no structure has tagged fields. Only flexible versions have it.
"""

from collections.abc import Callable
from itertools import groupby
from struct import calcsize
from struct import error as struct_error
from typing import Any, Final, TypeAlias, cast

from kwire.codec.layout import Field, Layout, is_flexible, layout_of
from kwire.codec.primitives import Buffer, MalformedError, uvarint_rest
from kwire.codec.source import Source

# Any: the values of a message, whose types depend on its table.
Values: TypeAlias = tuple[Any, ...]
FlatDecoder: TypeAlias = Callable[[Buffer, int], Values | None]
FlatEncoder: TypeAlias = Callable[..., bytes]

_NAMES: Final[dict[str, object]] = {
    "MalformedError": MalformedError,
    "struct_error": struct_error,
    "uvarint_rest": uvarint_rest,
}
_decoders: Final[dict[tuple[type, int, tuple[str, ...]], FlatDecoder]] = {}
_encoders: Final[dict[tuple[type, int, tuple[str, ...], tuple[str, ...]], FlatEncoder]] = {}
_LENGTH_MAX: Final = 127
"""The largest length that takes one byte; longer texts are unusual."""


def flat_decoder(cls: type, version: int, ones: tuple[str, ...]) -> FlatDecoder:
    """Return a function that reads a message of a flexible version at a position.

    It returns the values in the order of the wire, or None if the message is damaged or does not
    have the usual shape, with one element in the arrays named ``ones``.
    """
    assert is_flexible(cls, version)
    key = cls, version, ones
    if key not in _decoders:
        _decoders[key] = _compile_decoder(cls, version, ones)
    return _decoders[key]


def _compile_decoder(cls: type, version: int, ones: tuple[str, ...]) -> FlatDecoder:
    source = Source(f"{cls.__name__} v{version}", "def decode_flat(buf, pos):", _NAMES)
    with source.block("try:"):
        source.add("size = len(buf)")
        emit = _Decoding(source, version, ones)
        emit.struct(cls)
        emit.flush()
        source.add(f"return ({', '.join(emit.values)},)")
    with source.block("except (struct_error, IndexError, UnicodeError, MalformedError):"):
        source.add("return None")
    return cast("FlatDecoder", source.function("decode_flat"))


class _Decoding:
    """The state while a decoder is generated: its source, and the fields of the next unpack."""

    def __init__(self, source: Source, version: int, ones: tuple[str, ...]) -> None:
        self.source = source
        self.version = version
        self.ones = ones
        self.run: list[tuple[str, str]] = []
        self.unusual: list[str] = []
        """Conditions on the run that show another shape."""
        self.values: list[str] = []

    def struct(self, cls: type) -> None:
        for field in layout_of(cls, self.version, True).fields:
            self.value(field)
        self.byte("t", "{}")

    def byte(self, stem: str, unusual: str) -> str:
        """Add a byte to the run, and the condition under which it shows another shape."""
        name = self.source.variable(stem)
        self.run.append(("B", name))
        self.unusual.append(unusual.format(name))
        return name

    def flush(self) -> None:
        """Write the run as one unpack, and the test of its shape."""
        codes = "".join(code for code, _ in self.run)
        names = "".join(f"{name}, " for _, name in self.run)
        self.source.add(f"{names}= {self.source.unpack(codes)}(buf, pos)")
        with self.source.block(f"if {' or '.join(self.unusual)}:"):
            self.source.add("return None")
        self.source.add(f"pos += {calcsize('>' + codes)}")
        self.run, self.unusual = [], []

    def value(self, field: Field) -> None:
        shape = field.shape
        if shape.form == "array":
            is_one = field.name in self.ones
            self.byte("n", "{} != 2" if is_one else "{} != 1")
            if is_one:
                self.struct(_element(field))
        elif shape.form == "string" and field.nullable:
            self.byte("n", "{}")
        elif shape.form in ("string", "records"):
            self.variable_size(shape.form)
        else:
            assert shape.form == "fixed", field.name
            name = self.source.variable("v")
            self.run.append((shape.code, name))
            self.values.append(name)

    def variable_size(self, form: str) -> None:
        name = self.source.variable("v")
        is_text = form == "string"
        count = self.byte("n", f"not 0 < {{}} <= {_LENGTH_MAX}" if is_text else "not {}")
        self.flush()
        if not is_text:
            with self.source.block(f"if {count} > 127:"):
                self.source.add("more = buf[pos]")
                with self.source.block("if more > 127:"):
                    self.source.add(f"{count}, pos = uvarint_rest(buf, pos, {count})")
                with self.source.block("else:"):
                    self.source.add(f"{count} += (more << 7) - 128")
                    self.source.add("pos += 1")
        self.source.add(f"end = pos + {count} - 1")
        with self.source.block("if end > size:"):
            self.source.add("return None")
        content = "buf[pos:end]"
        self.source.add(f"{name} = " + (f'str({content}, "utf-8")' if is_text else content))
        self.source.add("pos = end")
        self.values.append(name)


def _element(field: Field) -> type:
    """Return the class of the structures in an array."""
    element = field.shape.element
    assert element is not None, field.name
    assert element.cls is not None, field.name
    return element.cls


def flat_encoder(
    cls: type, version: int, ones: tuple[str, ...], names: tuple[str, ...]
) -> FlatEncoder:
    """Return a function that builds the frame of a response in a flexible version.

    Its arguments are the correlation id and the values of the fields named ``names``, as far as the
    version has them, in the order of the wire; all other fields have their defaults.
    """
    assert is_flexible(cls, version)
    key = cls, version, ones, names
    if key not in _encoders:
        _encoders[key] = _compile_encoder(cls, version, ones, names)
    return _encoders[key]


def _compile_encoder(
    cls: type, version: int, ones: tuple[str, ...], names: tuple[str, ...]
) -> FlatEncoder:
    emit = _Encoding(version, ones, names)
    emit.struct(cls)
    arguments = "".join(f", {name}" for name in emit.arguments)
    head = f"def encode_flat(correlation_id{arguments}):"
    source = Source(f"{cls.__name__} v{version}", head, {})
    for text in emit.texts:
        source.add(f"{text} = {text}.encode()")
    size = calcsize(">i") + 1 + sum(calcsize(">" + code) for code, _ in emit.run if code != _TEXT)
    sizes = " + ".join([str(size), *(f"len({text})" for text in emit.texts)])
    run = [("i", sizes), ("i", "correlation_id"), ("B", "0"), *emit.run]
    pieces = []
    for is_text, group in groupby(run, lambda item: item[0] == _TEXT):
        if is_text:
            pieces += [value for _, value in group]
            continue
        items = list(group)
        codes = "".join(code for code, _ in items)
        pieces.append(f"{source.pack(codes)}({', '.join(value for _, value in items)})")
    source.add(f"return {' + '.join(pieces)}")
    return cast("FlatEncoder", source.function("encode_flat"))


_TEXT: Final = "text"
"""The code of a text in a run, which follows its length."""


class _Encoding:
    """The state while an encoder is generated: its values, and the codes that pack them."""

    def __init__(self, version: int, ones: tuple[str, ...], names: tuple[str, ...]) -> None:
        self.version = version
        self.ones = ones
        self.names = names
        self.run: list[tuple[str, str]] = []
        self.arguments: list[str] = []
        self.texts: list[str] = []

    def struct(self, cls: type) -> None:
        layout: Layout = layout_of(cls, self.version, True)
        for field in layout.fields:
            self.value(field)
        self.run.append(("B", "0"))

    def value(self, field: Field) -> None:
        shape, is_argument = field.shape, field.name in self.names
        if is_argument:
            self.arguments.append(field.name)
        if shape.form == "fixed":
            self.run.append((shape.code, field.name if is_argument else repr(field.default)))
        elif shape.form == "array":
            is_one = field.name in self.ones
            self.run.append(("B", "2" if is_one else "1"))
            if is_one:
                self.struct(_element(field))
        elif is_argument:
            assert shape.form == "string", field.name
            self.texts.append(field.name)
            self.run += [("B", f"len({field.name}) + 1"), (_TEXT, field.name)]
        else:
            assert field.nullable, field.name
            assert field.default is None, field.name
            self.run.append(("B", "0"))

"""Turns message tables into functions: one decoder and one encoder per message and version.

Functions are compiled on first use and cached: nothing is compiled, and no message module is
imported, before the message is first sent or received.

Measurements shaped the generated source (benchmarks/codec.py, CPython 3.11, microseconds). Decoding
a ListOffsets v5 request with 100 partitions takes 14.5, against 68 to 139 with objects made by
``__init__``, 23 to 39 with one unpack and one object at a time, and 12 for the bare ``iter_unpack``
and its stores. Therefore the source calls no ``__init__``, reads a run of fixed-size fields with
one unpack, and reads an array of fixed-size structures with one ``iter_unpack`` whose loop target
is the fields themselves. Decoding a Produce request with 3 partitions takes 3.0, a Fetch request
with 1 or 100 partitions 2.5 or 21.5. Encoding takes 8.8 for that ListOffsets, 1.6 for the Produce
response and 1.1 for a Fetch response. Compiling a function takes 0.5 to 1.7 ms, once.
"""

from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias, TypeVar, cast

from kwire.codec.emit_decode import decoder_source
from kwire.codec.emit_encode import encoder_source
from kwire.codec.primitives import Buffer
from kwire.codec.schema import RecordBatches, spec_of

M = TypeVar("M")

Part: TypeAlias = RecordBatches
"""A piece of a message: a buffer, or a ``records`` value whose ``len()`` is its size."""
Decoder = Callable[[Buffer, int], tuple[M, int]]
Encoder = Callable[[M, list[Part]], None]
DecoderInSteps = Callable[[Buffer, int], Generator[None, None, tuple[M, int]]]
EncoderInSteps = Callable[[M, list[Part]], Generator[None, None, None]]

# Any: a function belongs to the class in its key, which a dict's type cannot express.
_ClassOfKey: TypeAlias = Any
_decoders: Final[dict[tuple[type, int], Decoder[_ClassOfKey]]] = {}
_encoders: Final[dict[tuple[type, int], Encoder[_ClassOfKey]]] = {}
_decoders_in_steps: Final[dict[tuple[type, int], DecoderInSteps[_ClassOfKey]]] = {}
_encoders_in_steps: Final[dict[tuple[type, int], EncoderInSteps[_ClassOfKey]]] = {}


def _check(cls: type, version: int) -> None:
    if version not in spec_of(cls).versions:
        raise ValueError(f"{cls.__name__} has no version {version}")


def decoder(cls: type[M], version: int) -> Decoder[M]:
    """Return a function that reads a ``cls`` at a position; it returns the message and its end.

    ``records`` fields become memoryviews into the buffer. Bytes after the end are ignored. Damaged
    input raises :class:`~kwire.codec.primitives.MalformedError` and nothing else.
    """
    function = _decoders.get((cls, version))
    if function is None:
        _check(cls, version)
        function = cast("Decoder[M]", decoder_source(cls, version).function("decode"))
        _decoders[cls, version] = function
    return function


def encoder(cls: type[M], version: int) -> Encoder[M]:
    """Return a function that appends a message's bytes to a list of parts.

    A ``records`` value becomes a separate part, without a copy.
    """
    function = _encoders.get((cls, version))
    if function is None:
        _check(cls, version)
        function = cast("Encoder[M]", encoder_source(cls, version).function("encode"))
        _encoders[cls, version] = function
    return function


def decoder_in_steps(cls: type[M], version: int) -> DecoderInSteps[M]:
    """Return a generator function that reads like :func:`decoder`, pausing after each structure.

    It is meant for large messages: it costs a third more.
    """
    function = _decoders_in_steps.get((cls, version))
    if function is None:
        _check(cls, version)
        source = decoder_source(cls, version, in_steps=True)
        function = cast("DecoderInSteps[M]", source.function("decode"))
        _decoders_in_steps[cls, version] = function
    return function


def encoder_in_steps(cls: type[M], version: int) -> EncoderInSteps[M]:
    """Return a generator function that writes like :func:`encoder`, but pauses as well."""
    function = _encoders_in_steps.get((cls, version))
    if function is None:
        _check(cls, version)
        source = encoder_source(cls, version, in_steps=True)
        function = cast("EncoderInSteps[M]", source.function("encode"))
        _encoders_in_steps[cls, version] = function
    return function


def decode(cls: type[M], buf: Buffer, version: int) -> M:
    """Return the message at the start of ``buf``."""
    return decoder(cls, version)(buf, 0)[0]


def encode(message: object, version: int) -> bytes:
    """Return the message's bytes, record batches included."""
    parts: list[Part] = []
    encoder(type(message), version)(message, parts)
    return b"".join(parts)

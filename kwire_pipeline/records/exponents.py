r"""Numbers in text whose exponents are so large that making a DECIMAL of them would take hours.

Java would write out the digits: 1e600000000 keeps a processor busy for hours, also in quotes, which
Spark accepts for a DECIMAL. No such number fits a DECIMAL, so its text is not parsed at all.

Rules of this file: the same characters in other strings, such as "sha256:4e1234", are not a number.
A quoted number is checked only as the value of a DECIMAL field, in any spelling of the field's name
and with any escapes, because a hostile record may use both. The patterns mean the same in Java and
in Python.
"""

import re
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType

DIGIT: Final = r"[^\x00-+\--/:-\x7f]"
"""A digit of any script; Java skips commas."""
NOT_ZERO: Final = r"[^\x00-+\--0:-\x7f]"
EXPONENT: Final = f"[eE][+-]?0*{NOT_ZERO}{DIGIT}{{3}}"
"""An exponent of at least four digits."""
SUSPECT: Final = rf"[eE][+-]?{DIGIT}*(?:{DIGIT}{{4}}|\\u)|\\u00(?:2[bBdD]|3[0-9]|[46]5)"
"""A part of every number below: a quick search for it finds most values harmless."""
ESCAPED: Final = r"(?s)\\."
STRING: Final = "\"[^\"]*\"|'[^']*'"
"""A string without escapes; Spark also accepts the second form."""
BARE: Final = rf"[:\[,]\s*-?[0-9]+(?:\.[0-9]+)?{EXPONENT}"
"""A number outside strings."""
QUOTED: Final = rf"""["'](?:[0-9.eE+-]*\\u|[+-]?(?:{DIGIT}|\.)*{EXPONENT}{DIGIT}*["'])"""
"""A string that is such a number, or may be such a number after unescaping."""


def has_decimal(kind: DataType) -> bool:
    """Return whether a type may contain a DECIMAL; a false positive costs only a little time."""
    return "decimal" in kind.simpleString()


def moderate(text: Column) -> Column:
    """Return a text that may be a number; null if its exponent is huge.

    A cast to DECIMAL rejects large numbers by their exponent, but not small ones: it would divide
    1e-600000000 by a power of ten with as many digits.
    """
    return F.when(~text.rlike(EXPONENT), text)


def is_huge(text: Column, schema: StructType) -> Column:
    """Return the condition that a JSON text has a number with a huge exponent."""
    bare = F.regexp_replace(F.regexp_replace(text, ESCAPED, ""), STRING, '""')
    return text.rlike(SUSPECT) & (bare.rlike(BARE) | text.rlike(quoted_pattern(schema)))


def quoted_pattern(schema: StructType) -> str:
    """Return the pattern of huge quoted numbers where a schema has DECIMALs."""
    names = sorted(_names(schema))
    places = [rf"""["'](?:{"|".join(map(_spelling, names))})["']\s*:\s*"""] if names else []
    if _has_nameless(schema):
        places.append(r"[:\[,]\s*")
    return f"(?:{'|'.join(places)}){QUOTED}"


def _names(kind: DataType) -> set[str]:
    """Return the names of the DECIMAL fields at any depth."""
    match kind:
        case StructType():
            own = {f.name for f in kind.fields if isinstance(f.dataType, DecimalType)}
            return own.union(*(_names(field.dataType) for field in kind.fields))
        case ArrayType():
            return _names(kind.elementType)
        case MapType():
            return _names(kind.valueType)
    return set()


def _has_nameless(kind: DataType) -> bool:
    """Return whether a DECIMAL is an element of an array, or a value of a map."""
    match kind:
        case StructType():
            return any(_has_nameless(field.dataType) for field in kind.fields)
        case ArrayType():
            return isinstance(kind.elementType, DecimalType) or _has_nameless(kind.elementType)
        case MapType():
            return isinstance(kind.valueType, DecimalType) or _has_nameless(kind.valueType)
    return False


def _spelling(name: str) -> str:
    """Return the pattern of a name in JSON, where each character may be escaped."""
    return "".join(_escaped_or_not(character) for character in name)


def _escaped_or_not(character: str) -> str:
    units = character.encode("utf-16-be")
    codes = (units[at : at + 2].hex() for at in range(0, len(units), 2))
    escapes = "".join(rf"\\u(?i:{code})" for code in codes)
    return rf"(?:\\?{re.escape(character)}|{escapes})"

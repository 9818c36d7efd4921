"""Regular expressions from untrusted sources, matched in linear time.

The syntax is RE2's: no expression makes matching slow. The package google-re2 (``kwire[regex]``) is
imported when the first expression is compiled.
"""

from collections.abc import Callable

Match = Callable[[str], object | None]
"""Returns a true value if the whole text matches."""


class BadExpression(ValueError):
    """An expression that is not valid, or that cannot be compiled here."""


class NoCompiler(BadExpression):
    """The package that compiles expressions is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "Regular expressions need the Python package google-re2, which is not installed."
        )


def compile_regex(text: str) -> Match:
    """Compile an expression; raises BadExpression with the reason."""
    try:
        import re2
    except ImportError:
        raise NoCompiler from None
    options = re2.Options()
    options.log_errors = False
    try:
        match: Match = re2.compile(text, options=options).fullmatch
    except re2.error as error:
        reason = error.args[0]
        raise BadExpression(reason.decode() if isinstance(reason, bytes) else str(reason)) from None
    return match

"""Checks of the types that a test passes as arguments.

Rule: a wrong type is an error that names the argument, raised before anything has changed.
"""

from numbers import Integral, Real

from kwire.testing.errors import WrongArgument


def check_text(name: str, value: object) -> None:
    """Raise WrongArgument unless the value is a string."""
    if not isinstance(value, str):
        raise WrongArgument(f"{name} must be a string, not {value!r:.100}")


def check_number(name: str, value: object) -> None:
    """Raise WrongArgument unless the value is a number."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise WrongArgument(f"{name} must be a number, not {value!r:.100}")


def check_whole(name: str, value: object) -> None:
    """Raise WrongArgument unless the value is a whole number."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise WrongArgument(f"{name} must be a whole number, not {value!r:.100}")

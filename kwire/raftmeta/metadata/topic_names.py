"""The rules for topic names."""

import re
from typing import Final

from kwire import errors

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
_NAME_MAX: Final = 249


def check_topic_name(name: str) -> None:
    """Raise InvalidTopicException with the reason if a topic name is not allowed."""
    wrong = None
    if not name:
        wrong = "the empty string is not allowed"
    elif name in (".", ".."):
        wrong = f"'{name}' is not allowed"
    elif len(name) > _NAME_MAX:
        wrong = f"the length of '{name}' is longer than the max allowed length {_NAME_MAX}"
    elif _NAME.fullmatch(name) is None:
        wrong = (
            f"'{name}' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'"
        )
    if wrong is not None:
        raise errors.InvalidTopicException(f"Topic name is invalid: {wrong}")

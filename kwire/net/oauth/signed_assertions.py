"""Assertions that this node signs with its private key (:mod:`kwire.security.oauth.assertion`)."""

from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

import attrs

from kwire.clock import Clock
from kwire.net.oauth.assertions import read_file
from kwire.net.oauth.documents import Unavailable
from kwire.security.oauth.assertion import (
    AssertionRules,
    Template,
    parse_private_key,
    parse_template,
    sign_assertion,
)

T = TypeVar("T")


@attrs.frozen(eq=False, repr=False)
class SignedAssertion:
    """Assertions that this node signs."""

    rules: AssertionRules
    key_path: str
    passphrase: str | None
    template_path: str | None
    clock: Clock
    random_bytes: Callable[[int], bytes] | None
    """Creates the ids of assertions; None if they have none."""

    def read(self) -> str:
        template = Template({}, {})
        if self.template_path is not None:
            template = _parse(self.template_path, parse_template)
        key = _parse(self.key_path, lambda text: parse_private_key(text, self.passphrase))
        jti = ""
        if self.random_bytes is not None:
            jti = str(UUID(bytes=self.random_bytes(16), version=4))
        try:
            return sign_assertion(self.rules, template, key, self.clock.now_ms() // 1000, jti)
        except ValueError as error:
            raise Unavailable(f"{self.key_path}: {error}") from None


def _parse(path: str, parse: Callable[[bytes], T]) -> T:
    try:
        return parse(read_file(path))
    except ValueError as error:
        raise Unavailable(f"{path}: {error}") from None

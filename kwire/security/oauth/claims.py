"""Decides whether the claims of an access token let its bearer log in, and as whom.

Pure, and independent of how the token was verified. The rules and their order are those of Apache
Kafka's validator of signed tokens. Times are seconds since 1970, as in tokens. Only the characters
that Java trims surround a name: another one, such as a no-break space, makes it another user.
"""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from kwire.security.oauth.messages import TokenRejected
from kwire.types import BLANKS

Claims = Mapping[str, object]
_SECONDS_MAX: Final = 1 << 40
"""Times after this one, in the year 36812, are not valid."""


class AccessToken(NamedTuple):
    """The facts from an accepted token."""

    user: str
    expires_ms: int
    """The end of the session, in milliseconds since 1970."""


class TokenRules(NamedTuple):
    """A listener's requirements for the claims of signed tokens."""

    audiences: tuple[str, ...] = ()
    """A token must name one of these audiences; if there are none, it must not name any."""
    issuer: str | None = None
    skew_s: int = 30
    """The largest accepted difference between the clocks of the issuer and of this node."""
    user_claim: str = "sub"
    scope_claim: str = "scope"


def check_claims(claims: Claims, rules: TokenRules, now_ms: int) -> AccessToken:
    """Return the user of a verified token; raise TokenRejected."""
    expires_s = _required_seconds(claims, "exp")
    issued_s = _required_seconds(claims, "iat")
    valid_from_s = seconds(claims, "nbf")
    now_s = now_ms / 1000
    if now_s - rules.skew_s >= expires_s:
        raise TokenRejected(f"the token expired {now_s - expires_s:.0f} s ago")
    if valid_from_s is not None and now_s + rules.skew_s < valid_from_s:
        raise TokenRejected(f"the token is not valid for another {valid_from_s - now_s:.0f} s")
    if expires_s < max(issued_s, valid_from_s or 0):
        raise TokenRejected("the token expires before it becomes valid")
    _check_audience(claims, rules)
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise TokenRejected("the token has another issuer")
    _check_scopes(claims.get(rules.scope_claim), rules.scope_claim)
    return AccessToken(_text(claims, rules.user_claim), int(expires_s * 1000))


def seconds(claims: Claims, name: str) -> float | None:
    """Return a time among the claims, None if it is missing; raise TokenRejected if invalid."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRejected(f"the claim {name} is not a number")
    if not math.isfinite(value) or not 0 <= value < _SECONDS_MAX:
        raise TokenRejected(f"the claim {name} is not a time")
    return value


def _required_seconds(claims: Claims, name: str) -> float:
    value = seconds(claims, name)
    if value is None:
        raise TokenRejected(f"the token lacks the claim {name}")
    return value


def _check_audience(claims: Claims, rules: TokenRules) -> None:
    audience = claims.get("aud")
    if audience is None and not rules.audiences:
        return
    named = audience if isinstance(audience, list) else [audience]
    if not any(each in rules.audiences for each in named if isinstance(each, str)):
        which = "another audience" if rules.audiences else "an audience, and none is expected"
        raise TokenRejected(f"the token is for {which}")


def _check_scopes(value: object, name: str) -> None:
    """Reject scopes that are not strings, empty or repeated; kwire uses ACLs, not scopes."""
    scopes = value if isinstance(value, list) else [value] if isinstance(value, str) else []
    if not all(isinstance(scope, str) and scope.strip(BLANKS) for scope in scopes):
        raise TokenRejected(f"the claim {name} has an invalid scope")
    if len({scope.strip(BLANKS) for scope in scopes}) < len(scopes):
        raise TokenRejected(f"the claim {name} has a scope twice")


def _text(claims: Claims, name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str) or not (user := value.strip(BLANKS)):
        raise TokenRejected(f"the token lacks a user name in the claim {name}")
    return user

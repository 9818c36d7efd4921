"""Access tokens without a signature, with which anybody can log in under any name.

Apache Kafka accepts them on a listener with OAUTHBEARER whose settings do not name another
validator; they are for tests. The options are in the listener's JAAS line. The options, claims and
checks are Kafka's.
"""

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import NamedTuple

from kwire.security.oauth.claims import AccessToken, Claims, seconds
from kwire.security.oauth.messages import TokenRejected
from kwire.security.oauth.sections import decode_section


class UnsecuredRules(NamedTuple):
    """A listener's requirements for unsecured tokens."""

    user_claim: str = "sub"
    scope_claim: str = "scope"
    scopes: tuple[str, ...] = ()
    """The scopes that a token must have."""
    skew_ms: int = 0

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "UnsecuredRules":
        """Return the rules in the options of a JAAS line; raise ValueError."""
        prefix = "unsecuredValidator"
        skew = options.get(f"{prefix}AllowableClockSkewMs", "0") or "0"
        if not skew.isascii() or not skew.isdigit():
            raise ValueError(f"{prefix}AllowableClockSkewMs must be a number that is not negative")
        return cls(
            options.get(f"{prefix}PrincipalClaimName", "").strip() or "sub",
            options.get(f"{prefix}ScopeClaimName", "").strip() or "scope",
            tuple(options.get(f"{prefix}RequiredScope", "").split()),
            int(skew),
        )


def check_unsecured(token: str, rules: UnsecuredRules, now_ms: int) -> AccessToken:
    """Return the user of an unsecured token; raise TokenRejected."""
    sections = token.split(".", 3)
    if len(sections) != 3 or not all(sections[:2]) or sections[2]:
        raise TokenRejected("the token does not have the form of an unsecured one")
    if decode_section(sections[0]).get("alg") != "none":
        raise TokenRejected("an unsecured token must have the algorithm none")
    claims = decode_section(sections[1])
    expires_s, issued_s = seconds(claims, "exp"), seconds(claims, "iat")
    if expires_s is None:
        raise TokenRejected("the token lacks the claim exp")
    user = claims.get(rules.user_claim)
    if not isinstance(user, str) or not user.strip():
        raise TokenRejected(f"the token lacks a user name in the claim {rules.user_claim}")
    if issued_s is not None and issued_s * 1000 > now_ms + rules.skew_ms:
        raise TokenRejected("the token was issued in the future")
    if now_ms - rules.skew_ms >= expires_s * 1000:
        raise TokenRejected("the token has expired")
    if issued_s is not None and expires_s <= issued_s:
        raise TokenRejected("the token expires before it was issued")
    _check_scopes(claims, rules)
    return AccessToken(user, round(expires_s * 1000))


def _check_scopes(claims: Claims, rules: UnsecuredRules) -> None:
    value = claims.get(rules.scope_claim)
    scopes = value if isinstance(value, list) else [value]
    named = {scope.strip() for scope in scopes if isinstance(scope, str)}
    if not named.issuperset(rules.scopes):
        raise TokenRejected("the token lacks a scope", scope=f"[{', '.join(rules.scopes)}]")


def unsecured_token(options: Mapping[str, str], now_ms: int) -> str:
    """Return the token that the options of a JAAS line describe; raise ValueError.

    The options are ``unsecuredLoginStringClaim_NAME``, ``unsecuredLoginNumberClaim_NAME``,
    ``unsecuredLoginListClaim_NAME``, whose first character separates the elements of its value, and
    ``unsecuredLoginLifetimeSeconds``.
    """
    prefix = "unsecuredLogin"
    lifetime_s = int(options.get(f"{prefix}LifetimeSeconds", "3600"))
    claims: dict[str, object] = {"iat": now_ms / 1000, "exp": now_ms / 1000 + lifetime_s}
    for option, text in options.items():
        kind, mark, name = option.removeprefix(prefix).partition("Claim_")
        if not option.startswith(prefix) or not mark:
            continue
        if name in claims:
            raise ValueError(f"the option {option} cannot set the claim {name}")
        if kind == "String":
            claims[name] = text
        elif kind == "Number":
            claims[name] = float(text)
        elif kind == "List":
            claims[name] = text[1:].split(text[0]) if len(text) > 1 else []
    header = _encode({"alg": "none"})
    return f"{header}.{_encode(claims)}."


def _encode(section: Mapping[str, object]) -> str:
    return urlsafe_b64encode(json.dumps(section).encode()).decode().rstrip("=")

"""The user names that rules make of distinguished names; Apache Kafka 4.3.1 gave these answers."""

import pytest

from kwire.configs.declare import ConfigError
from kwire.configs.principal_rules import PrincipalRules, check_rules

DUKE = "CN=Duke,OU=ServiceUsers,O=Org,C=US"
OTHER = "CN=duke.x,OU=Dev,O=Org,L=P,ST=S,C=US"
SHORT = "CN=Duke"
SEVERAL = (
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U,DEFAULT"
)


@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        ("DEFAULT", DUKE, DUKE),
        ("  DEFAULT  ", SHORT, SHORT),
        ("DEFAULT,DEFAULT", SHORT, SHORT),
        ("", SHORT, None),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", DUKE, "Duke"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", OTHER, None),
        (SEVERAL, DUKE, "DUKE"),
        (SEVERAL, OTHER, "duke.x@dev"),
        (SEVERAL, SHORT, "DUKE"),
        (SEVERAL, "O=nothing", "O=nothing"),
        ("RULE:^CN=([^,ADEFLTU,]+)(.*|$)/$1/L", OTHER, "duke.x"),
        ("RULE:^CN=([^,ADEFLTU,]+)(.*|$)/$1/L", DUKE, None),
        ("RULE:cn=(.*),ou.*/$1/", DUKE, None),
        ("RULE:^CN=(.*?)(,|$).*/a\\/b-$1/", DUKE, "a/b-Duke"),
        ("RULE:CN=(\\w+)/x/,RULE:x/y/U", SHORT, "x"),
        ("RULE:CN=(\\w+)/x/,RULE:x/y/U", DUKE, None),
        ("RULE:^CN=(.*?),.*/$0-$2/", DUKE, f"{DUKE}-$2"),
        ("RULE:^CN=(.*?),.*/$1/L,\nDEFAULT", DUKE, "duke"),
        ("RULE:^CN=(.*?),.*/$1/L,\nDEFAULT", SHORT, SHORT),
        ("RULE:^CN=(.*)/$1/\nDEFAULT", SHORT, SHORT),  # Commas separate, line breaks do not.
        ("RULE:(?<n>CN)=.*/\\$1/", DUKE, "$1"),
        ("RULE:^CN=(D)(uke).*/$12-$2/", DUKE, "D2-uke"),
        ("RULE:CN=(\\w+).*/$1/", "CN=stra\u00dfe,O=Org", "stra"),
        ("RULE:(?i)cn=kafka,.*/admin/", "CN=KAFKA,O=Org", "admin"),
        ("RULE:(?i)cn=kafka,.*/admin/", "CN=\u212aafka,O=Org", None),  # The sign of kelvins.
        ("RULE:(?i)cn=ops,.*/admin/", "CN=op\u017f,O=Org", None),  # A long s.
    ],
)
def test_user_name_is_that_of_kafka(rules: str, name: str, user: str | None) -> None:
    assert PrincipalRules.parse(rules).user(name) == user


@pytest.mark.parametrize(
    "rules",
    [
        "XYZ",
        "RULE:a/b",
        "RULE:a/b/c/L",
        "RULE:a/b/X",
        "RULE:a/b/l",
        "default",
        "RULE:.*/a$1/",
        "RULE:(/x/",
        "RULE:a/$x/",
        "RULE:CN=[a-z&&[^x]]+/x/",
        "RULE:CN=[[a]b]+/x/",
        "RULE:(?u)cn=a/x/",
    ],
)
def test_invalid_rule_is_an_error(rules: str) -> None:
    with pytest.raises(ConfigError):
        PrincipalRules.parse(rules)
    assert check_rules(rules)

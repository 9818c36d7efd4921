"""JAAS lines, as files for Kafka have them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwire.security.jaas import LoginModule, parse_login_module
from kwire.security.plain import digest, passwords_of

NAME = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f"{NAME} required;", {}),
        (f'{NAME} required username="a" password="b";', {"username": "a", "password": "b"}),
        (f"{NAME} required username=a password='b c';", {"username": "a", "password": "b c"}),
        (f'{NAME} REQUIRED user_al-ice="x";', {"user_al-ice": "x"}),
        (f'{NAME}\n  sufficient // why\n  /* and */ a = "b"\n;', {"a": "b"}),
        (f'{NAME} optional a="x;y=\\"z\\"\\n\\\\";', {"a": 'x;y="z"\n\\'}),
        (f'{NAME} required a="\\101\\t";', {"a": "A\t"}),
        (f'{NAME} required a="grün" a="blue";', {"a": "blue"}),
    ],
)
def test_options_of_a_login_module(text: str, options: dict[str, str]) -> None:
    assert parse_login_module(text) == LoginModule(NAME, options)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        NAME,
        f"{NAME};",
        f"{NAME} required",
        f"{NAME} needed;",
        f'{NAME} required a "secret";',
        f'{NAME} required a="secret"',
        f'{NAME} required a="secret;',
        f"{NAME} required a=;",
        f"{NAME} required a=1secret;",
        f'{NAME} required a="secret"; {NAME} required;',
        f"{NAME} required = a;",
    ],
)
def test_malformed_line_is_rejected_without_showing_a_secret(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(it|its|the|character) ") as caught:
        parse_login_module(text)
    assert "secret" not in str(caught.value)


@given(st.text())
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    try:
        module = parse_login_module(text)
    except ValueError:
        return
    assert module.name


def test_users_are_the_options_that_begin_with_user() -> None:
    module = parse_login_module(f'{NAME} required username="u" password="p" user_a="x" user_="";')
    assert passwords_of(module) == {"a": digest("x"), "": digest("")}

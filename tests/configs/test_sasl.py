"""The settings of listeners whose clients log in."""

import pytest

from kwire.configs.checks import secrets_warnings
from kwire.configs.declare import ConfigError
from kwire.configs.listeners import has_sasl
from kwire.configs.load import broker_config
from kwire.configs.oauth import UNSECURED_VALIDATOR, client_credentials, listener_oauth
from kwire.configs.sasl import TokenAccount, broker_account, controller_account, mechanisms_of
from tests.support.configs.node import NODE

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
LOGIN = {
    "listeners": "PLAINTEXT://:9092,LOGIN://:9094,CONTROLLER://:9093",
    "advertised.listeners": "PLAINTEXT://localhost:9092,LOGIN://localhost:9094",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,"
    "CONTROLLER:PLAINTEXT",
}
JAAS = "listener.name.login.plain.sasl.jaas.config"
USERS = {"sasl.enabled.mechanisms": "PLAIN", JAAS: f'{PLAIN} required user_alice="secret";'}
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
ACCOUNT = 'required username="node" password="secret"'
BROKERS = {"inter.broker.listener.name": "LOGIN"}
BROKERS_MECHANISM = "sasl.mechanism.inter.broker.protocol"
SCRAM_ACCOUNT = {"listener.name.login.scram-sha-256.sasl.jaas.config": f"{SCRAM} {ACCOUNT};"}
CONTROLLERS = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,"
    "CONTROLLER:SASL_PLAINTEXT",
}
CONTROLLERS_MECHANISM = "sasl.mechanism.controller.protocol"
LIFETIME = "connections.max.reauth.ms"


def lifetime_ms(**settings: str) -> int:
    named = {name.replace("_", "."): text for name, text in settings.items()}
    config = broker_config({**NODE, **LOGIN, **USERS, **named})
    (mechanism,) = mechanisms_of(config.static, "LOGIN")
    return mechanism.lifetime_ms


def test_listener_has_its_mechanisms_and_users(caplog: pytest.LogCaptureFixture) -> None:
    config = broker_config({**NODE, **LOGIN, **USERS})
    (mechanism,) = mechanisms_of(config.static, "LOGIN")
    assert mechanism.name == "PLAIN"
    assert mechanism.module.options == {"user_alice": "secret"}
    assert [has_sasl(endpoint.protocol) for endpoint in config.endpoints] == [False, True, False]
    assert not caplog.records


def test_listeners_own_setting_overrides_the_nodes() -> None:
    own = {
        "sasl.enabled.mechanisms": "OTHER",
        "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
    }
    config = broker_config({**NODE, **LOGIN, **USERS, **own})
    assert [mechanism.name for mechanism in mechanisms_of(config.static, "LOGIN")] == ["PLAIN"]
    assert lifetime_ms() == 0
    assert lifetime_ms(connections_max_reauth_ms="1") == 1
    both = {LIFETIME: "1", f"listener.name.login.{LIFETIME}": "2"}
    assert lifetime_ms(**both) == 2
    assert lifetime_ms(**both, **{f"listener.name.login.plain.{LIFETIME}": "3"}) == 3


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "sasl.enabled.mechanisms has GSSAPI"),
        ({"sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER"}, "OAUTHBEARER but no validator"),
        ({"listener.name.login.sasl.enabled.mechanisms": "X"}, "listener.name.login.sasl.enabled"),
        ({"sasl.enabled.mechanisms": ""}, "sasl.enabled.mechanisms is empty"),
        ({JAAS: "secret"}, f"{JAAS} cannot be read"),
        ({JAAS: 'other.Module required user_alice="secret";'}, "names a login module that"),
        ({"sasl.jaas.config": f'{PLAIN} required user_alice="secret";'}, "sasl.jaas.config"),
        (
            {"plain.sasl.jaas.config": f'{PLAIN} required user_a="secret";'},
            "plain.sasl.jaas.config",
        ),
        ({"listener.name.login.sasl.server.callback.handler.class": "x.Y"}, "callback.handler"),
        ({"listener.name.plaintext.sasl.enabled.mechanisms": "PLAIN"}, "no such listener has"),
        ({"listener.name.other.plain.sasl.jaas.config": "secret"}, "no such listener has SASL"),
        ({f"listener.name.login.plain.{LIFETIME}": "x"}, LIFETIME),
        (
            {"inter.broker.listener.name": "LOGIN"},
            "sasl.mechanism.inter.broker.protocol has GSSAPI",
        ),
        ({**BROKERS, BROKERS_MECHANISM: "PLAIN"}, f"{JAAS} has no account for this node"),
        ({**BROKERS, BROKERS_MECHANISM: "SCRAM-SHA-256"}, "sasl.jaas.config has no account"),
        ({**BROKERS, BROKERS_MECHANISM: "SCRAM-SHA-256", **SCRAM_ACCOUNT}, "LOGIN does not offer"),
        ({**CONTROLLERS}, "sasl.mechanism.controller.protocol has GSSAPI"),
        ({**CONTROLLERS, CONTROLLERS_MECHANISM: "SCRAM-SHA-256"}, "use PLAIN"),
        ({**CONTROLLERS, CONTROLLERS_MECHANISM: "PLAIN"}, "listener.name.controller.plain.sasl"),
        (
            {
                **CONTROLLERS,
                CONTROLLERS_MECHANISM: "PLAIN",
                "listener.name.controller.plain.sasl.jaas.config": f"{PLAIN} {ACCOUNT};",
                "listener.name.controller.sasl.enabled.mechanisms": "SCRAM-SHA-256",
            },
            "add PLAIN to listener.name.controller.sasl.enabled.mechanisms",
        ),
    ],
)
def test_what_cannot_work_is_rejected_in_one_line(settings: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        broker_config({**NODE, **LOGIN, **USERS, **settings})
    assert named in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_listener_without_mechanisms_or_users_is_rejected() -> None:
    """Kafka's default mechanism is GSSAPI, which kwire does not have."""
    with pytest.raises(ConfigError, match=r"sasl\.enabled\.mechanisms has GSSAPI"):
        broker_config({**NODE, **LOGIN})
    with pytest.raises(ConfigError, match=f"{JAAS}={PLAIN} required user_alice"):
        broker_config({**NODE, **LOGIN, "sasl.enabled.mechanisms": "PLAIN"})


def test_log_ins_on_an_open_listener_are_rejected() -> None:
    """A file that asks for logins never results in an open broker."""
    for name, text in USERS.items():
        with pytest.raises(ConfigError, match="no such listener has SASL"):
            broker_config({**NODE, name: text})


def test_controller_may_have_the_settings_of_the_brokers_listeners() -> None:
    """It opens none of them, so nothing is left open."""
    controller = {
        "process.roles": "controller",
        "listeners": "CONTROLLER://:9093",
        "listener.security.protocol.map": LOGIN["listener.security.protocol.map"],
    }
    assert broker_config({**NODE, **controller, **USERS}).is_controller
    del controller["listener.security.protocol.map"]
    with pytest.raises(ConfigError, match="no such listener has SASL"):
        broker_config({**NODE, **controller, **USERS})


def test_nodes_log_in_with_the_account_of_their_jaas_lines() -> None:
    config = broker_config(
        {
            **NODE,
            **LOGIN,
            **USERS,
            **BROKERS,
            **CONTROLLERS,
            **SCRAM_ACCOUNT,
            "listener.name.login.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.controller.plain.sasl.jaas.config": f'{PLAIN} {ACCOUNT} user_node="s";',
            BROKERS_MECHANISM: "SCRAM-SHA-256",
            CONTROLLERS_MECHANISM: "PLAIN",
        }
    )
    assert broker_account(config.static, "LOGIN") == ("SCRAM-SHA-256", "node", "secret")
    assert controller_account(config.static, "CONTROLLER") == ("PLAIN", "node", "secret")


PACKAGE = "org.apache.kafka.common.security.oauthbearer"
TOKENS = "listener.name.login.oauthbearer."
KEYS_URL = "sasl.oauthbearer.jwks.endpoint.url"
VALIDATOR = {
    f"{TOKENS}sasl.server.callback.handler.class": f"{PACKAGE}.OAuthBearerValidatorCallbackHandler"
}
LOGIN_HANDLER = {
    f"{TOKENS}sasl.login.callback.handler.class": f"{PACKAGE}.OAuthBearerLoginCallbackHandler"
}
SIGNED = {
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    KEYS_URL: "https://issuer/keys",
    **VALIDATOR,
}
MODULE = f"{PACKAGE}.OAuthBearerLoginModule"
TOKEN_BROKERS = {**SIGNED, **BROKERS, BROKERS_MECHANISM: "OAUTHBEARER", **LOGIN_HANDLER}
TOKENS_URL = "sasl.oauthbearer.token.endpoint.url"


def test_tokens_are_validated_as_the_listeners_own_settings_say() -> None:
    config = broker_config(
        {
            **NODE,
            **LOGIN,
            **SIGNED,
            "sasl.oauthbearer.expected.audience": "a,b",
            "listener.name.login.sasl.oauthbearer.expected.issuer": "listener",
            f"{TOKENS}sasl.oauthbearer.expected.issuer": "mechanism",
        }
    )
    tokens = listener_oauth(config.static, "LOGIN")
    assert tokens.sasl_oauthbearer_expected_audience == ("a", "b")
    assert tokens.sasl_oauthbearer_expected_issuer == "mechanism"
    assert tokens.sasl_oauthbearer_clock_skew_seconds == 30


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        # Kafka would accept tokens without a signature here.
        ({"sasl.enabled.mechanisms": "OAUTHBEARER", KEYS_URL: "https://i/keys"}, VALIDATOR),
        (
            {**SIGNED, f"{TOKENS}sasl.server.callback.handler.class": UNSECURED_VALIDATOR},
            VALIDATOR,
        ),
        ({"sasl.enabled.mechanisms": "OAUTHBEARER", **VALIDATOR}, KEYS_URL),
        ({**SIGNED, KEYS_URL: "ftp://issuer"}, "it must begin with https://"),
        ({**SIGNED, KEYS_URL: "file://keys"}, "it must begin with https://"),
        ({**SIGNED, "sasl.oauthbearer.jwt.validator.class": "x.Y"}, "jwt.validator.class"),
        ({**SIGNED, "sasl.oauthbearer.jwt.retriever.class": "x.Y"}, "jwt.retriever.class"),
        ({**SIGNED, "sasl.login.class": "x.Y"}, "sasl.login.class"),
        (
            {**SIGNED, f"{TOKENS}sasl.server.callback.handler.class": "x.Y"},
            "sasl.server.callback.handler.class=x.Y; write",
        ),
        (
            {
                **SIGNED,
                f"{TOKENS}sasl.server.callback.handler.class": (
                    f"{PACKAGE}.secured.OAuthBearerValidatorCallbackHandler"
                ),
            },
            f"={PACKAGE}.OAuthBearerValidatorCallbackHandler",
        ),
        ({**TOKEN_BROKERS}, TOKENS_URL),
        ({**TOKEN_BROKERS, TOKENS_URL: "https://issuer/token"}, "credentials.client.id"),
        (
            {**SIGNED, **BROKERS, BROKERS_MECHANISM: "OAUTHBEARER", TOKENS_URL: "https://i/t"},
            "sasl.login.callback.handler.class",
        ),
        ({**SIGNED, f"{TOKENS}sasl.jaas.config": f"{PLAIN} required;"}, "a login module that"),
    ],
)
def test_tokens_that_cannot_be_validated_keep_a_node_from_starting(
    settings: dict[str, str], named: str | dict[str, str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        broker_config({**NODE, **LOGIN, **settings})
    assert (named if isinstance(named, str) else next(iter(named))) in str(caught.value)


def test_nodes_log_in_with_tokens() -> None:
    account = {
        TOKENS_URL: "https://issuer/token",
        f"{TOKENS}sasl.jaas.config": f'{MODULE} required clientId="node" clientSecret="secret";',
    }
    config = broker_config(
        {
            **NODE,
            **LOGIN,
            **TOKEN_BROKERS,
            **account,
            **CONTROLLERS,
            CONTROLLERS_MECHANISM: "OAUTHBEARER",
            "listener.name.controller.oauthbearer.sasl.jaas.config": (
                f'{MODULE} required unsecuredLoginStringClaim_sub="node";'
            ),
            **{name.replace("login.o", "controller.o", 1): v for name, v in VALIDATOR.items()},
        }
    )
    token = broker_account(config.static, "LOGIN")
    assert isinstance(token, TokenAccount)
    assert client_credentials(token.tokens, token.module) == ("node", "secret")
    assert isinstance(controller_account(config.static, "CONTROLLER"), TokenAccount)


def test_command_line_is_warned_of_secrets_of_every_kind() -> None:
    """Certificates are public, although Kafka hides them."""
    secrets = [
        "listener.name.clients.oauthbearer.sasl.oauthbearer.client.credentials.client.secret",
        "listener.name.clients.plain.sasl.jaas.config",
        "listener.name.clients.ssl.key.password",
        "sasl.jaas.config",
        "ssl.keystore.key",
    ]
    public = ["listener.name.clients.ssl.truststore.certificates", "node.id", "no.such.setting"]
    (warning,) = secrets_warnings([*public, *secrets])
    assert f"names={','.join(secrets)};" in warning
    assert not list(secrets_warnings(public))

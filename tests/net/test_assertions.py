"""A node that asks its identity provider for a token with an assertion instead of a secret."""

import json
import time
from base64 import b64encode
from pathlib import Path
from random import Random

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from kwire.clock import SystemClock
from kwire.configs.declare import ConfigError
from kwire.configs.load import broker_config
from kwire.configs.oauth import JWT_BEARER_RETRIEVER
from kwire.configs.sasl import broker_account
from kwire.net.oauth.own_token import ProvidedToken, TokenProof
from kwire.node.node_logins import make_login
from kwire.security.exchange import AuthenticationFailed
from tests.support.configs.node import NODE
from tests.support.security.issuer import Issuer
from tests.support.security.issuer_server import CLIENT_ASSERTION, IssuerServer, serve_issuer

PACKAGE = "org.apache.kafka.common.security.oauthbearer"
START = "listener.name.brokers.oauthbearer.sasl."
OAUTH = "sasl.oauthbearer."
SIGNERS = {name: Issuer.create(name, name) for name in ("RS256", "ES256")}


def source(server: IssuerServer, **settings: str) -> ProvidedToken:
    """Return the source of a node's tokens by the settings of its file."""
    named = {f"{OAUTH}{name.replace('_', '.')}": text for name, text in settings.items()}
    config = broker_config(
        {
            **NODE,
            "listeners": "BROKERS://:9092,CONTROLLER://:9093",
            "advertised.listeners": "BROKERS://localhost:9092",
            "listener.security.protocol.map": "BROKERS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "BROKERS",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
            f"{OAUTH}jwks.endpoint.url": server.keys_url,
            f"{OAUTH}token.endpoint.url": server.tokens_url,
            f"{START}jaas.config": f"{PACKAGE}.OAuthBearerLoginModule required;",
            f"{START}login.callback.handler.class": f"{PACKAGE}.OAuthBearerLoginCallbackHandler",
            f"{START}server.callback.handler.class": (
                f"{PACKAGE}.OAuthBearerValidatorCallbackHandler"
            ),
            **named,
        }
    )
    account = broker_account(config.static, "BROKERS")
    proof = make_login(account, Random(1), SystemClock()).proof
    assert isinstance(proof, TokenProof)
    assert isinstance(proof.source, ProvidedToken)
    return proof.source


def signing(server: IssuerServer, folder: Path, algorithm: str = "RS256") -> dict[str, str]:
    """Return the settings of a node that signs assertions with a key that the provider knows."""
    server.signers["node-id"] = SIGNERS[algorithm]
    path = folder / "assertion.key"
    path.write_text(SIGNERS[algorithm].private_key())
    return {
        "assertion_algorithm": algorithm,
        "assertion_private_key_file": str(path),
        "assertion_claim_iss": "node-id",
        "assertion_claim_sub": "node",
        "assertion_claim_aud": server.tokens_url,
    }


@pytest.mark.parametrize("algorithm", list(SIGNERS))
async def test_node_proves_by_an_assertion_who_it_is(algorithm: str, tmp_path: Path) -> None:
    with serve_issuer({}) as server:
        settings = signing(server, tmp_path, algorithm)
        tokens = source(server, **settings, client_credentials_client_id="the-id", scope="all")
        began = int(time.time())
        assert await tokens.token()
        (form,), (claims,) = server.forms, server.assertions
        assert form.pop("client_assertion")
        assert form == {
            "grant_type": "client_credentials",
            "client_assertion_type": CLIENT_ASSERTION,
            "client_id": "the-id",
            "scope": "all",
        }
        assert began <= claims["iat"] <= began + 60
        assert claims["exp"] - claims["iat"] == 300
        assert claims["iat"] - claims["nbf"] == 60
        assert "jti" not in claims


async def test_assertion_may_be_the_grant(tmp_path: Path) -> None:
    with serve_issuer({}) as server:
        settings = signing(server, tmp_path)
        tokens = source(
            server,
            **settings,
            jwt_retriever_class=JWT_BEARER_RETRIEVER,
            assertion_claim_jti_include="true",
            assertion_claim_exp_seconds="20",
        )
        assert await tokens.token()
        assert set(server.forms[0]) == {"grant_type", "assertion"}
        server.lifetime_s = 0
        tokens = source(server, **settings, assertion_claim_jti_include="true")
        for _ in range(2):
            await tokens.token()
        grant, *others = server.assertions
        assert grant["exp"] - grant["iat"] == 20
        assert len({each["jti"] for each in others}) == 2


async def test_template_adds_claims_and_settings_override_them(tmp_path: Path) -> None:
    template = tmp_path / "template.json"
    payload = {"sub": "other", "exp": 1, "tenant": "t"}
    template.write_text(json.dumps({"header": {"kid": "k"}, "payload": payload}))
    with serve_issuer({}) as server:
        settings = signing(server, tmp_path)
        assert await source(server, **settings, assertion_template_file=str(template)).token()
        (claims,) = server.assertions
        assert (claims["sub"], claims["tenant"]) == ("node", "t")


async def test_assertion_of_another_program_is_read_for_each_request(tmp_path: Path) -> None:
    path = tmp_path / "assertion"
    with serve_issuer({}) as server:
        server.signers["node-id"] = SIGNERS["RS256"]
        server.lifetime_s = 0
        claims = {"iss": "node-id", "sub": "node", "aud": server.tokens_url}
        path.write_text(SIGNERS["RS256"].sign({**claims, "n": 1}) + "\n")
        tokens = source(server, assertion_file=str(path))
        await tokens.token()
        path.write_text(SIGNERS["RS256"].sign({**claims, "n": 2}))
        await tokens.token()
        assert [each["n"] for each in server.assertions] == [1, 2]
        path.unlink()
        with pytest.raises(AuthenticationFailed, match="No such file"):
            await TokenProof(tokens).prove(lambda token: pytest.fail("nothing is sent"))


@pytest.mark.parametrize("passphrase", ["", "secret"])
@pytest.mark.parametrize("form", ["PEM", "DER", "Base64"])
async def test_private_keys_of_every_form_are_read(
    form: str, passphrase: str, tmp_path: Path
) -> None:
    protection = BestAvailableEncryption(passphrase.encode()) if passphrase else NoEncryption()
    encoding = Encoding.PEM if form == "PEM" else Encoding.DER
    with serve_issuer({}) as server:
        settings = signing(server, tmp_path)
        key = SIGNERS["RS256"].private.private_bytes(encoding, PrivateFormat.PKCS8, protection)
        text = b64encode(key) if form == "Base64" else key
        (tmp_path / "assertion.key").write_bytes(text)
        if passphrase:
            with pytest.raises(ConfigError, match="its passphrase is wrong"):
                source(server, **settings)
            settings["assertion_private_key_passphrase"] = passphrase
        assert await source(server, **settings).token()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"assertion_private_key_file": ""}, "assertion.private.key.file"),
        ({"assertion_private_key_file": "/nowhere"}, "/nowhere: No such file"),
        ({"assertion_template_file": "/nowhere"}, "/nowhere: No such file"),
        ({"assertion_algorithm": "ES256"}, "cannot sign with ES256"),
        (
            {"jwt_retriever_class": JWT_BEARER_RETRIEVER, "token_endpoint_url": "file:///x"},
            "needs an identity provider, not a file",
        ),
    ],
)
def test_node_does_not_start_without_what_assertions_need(
    changes: dict[str, str], expected: str, tmp_path: Path
) -> None:
    with serve_issuer({}) as server:
        settings = {**signing(server, tmp_path), **changes}
        named = {name: text for name, text in settings.items() if text}
        with pytest.raises(ConfigError, match=expected):
            source(server, **named)

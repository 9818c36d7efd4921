"""A scan from outside, as a security team does it: which versions and suites a listener accepts."""

from __future__ import annotations

import socket
import ssl
from subprocess import run

import pytest

from compat_tests.tls.conftest import TlsBroker
from compat_tests.tls.scan import SSL_3, TLS_1_0, TLS_1_1, TLS_1_2, accepted_choices
from compat_tests.tls.stores import HOST

WEAK = ("NULL", "EXP", "RC4", "RC2", "DES", "MD5", "ADH", "AECDH", "PSK", "SRP", "IDEA", "SEED")


def names() -> dict[int, str]:
    """Return OpenSSL's names of the suites that it knows."""
    command = ["openssl", "ciphers", "-V", "ALL:COMPLEMENTOFALL:@SECLEVEL=0"]
    lines = run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    parts = [line.split() for line in lines]
    return {int(part[0].replace("0x", "").replace(",", ""), 16): part[2] for part in parts}


@pytest.mark.parametrize("listener", ["TLS", "MUTUAL", "OLDER"])
@pytest.mark.parametrize("version", [SSL_3, TLS_1_0, TLS_1_1])
def test_versions_before_tls_1_2_are_refused(
    listener: str, version: int, tls_broker: TlsBroker
) -> None:
    assert not accepted_choices((HOST, tls_broker.ports[listener]), version)


def test_listener_for_tls_1_3_alone_refuses_tls_1_2(tls_broker: TlsBroker) -> None:
    assert not accepted_choices((HOST, tls_broker.ports["NEWER"]), TLS_1_2)


@pytest.mark.parametrize("listener", ["TLS", "MUTUAL", "OLDER"])
def test_suites_of_tls_1_2_are_strong_and_nothing_is_compressed(
    listener: str, tls_broker: TlsBroker, broker_kind: str
) -> None:
    choices = accepted_choices((HOST, tls_broker.ports[listener]), TLS_1_2)
    openssl_names = names()
    suites = [openssl_names.get(choice.suite, f"unknown {choice.suite:#06x}") for choice in choices]
    assert suites
    assert {choice.version for choice in choices} == {TLS_1_2}
    assert {choice.compression for choice in choices} == {0}
    weak = [suite for suite in suites if any(word in suite for word in (*WEAK, "unknown"))]
    assert not weak
    if broker_kind == "kwire":  # Java also accepts suites without forward secrecy.
        old = [suite for suite in suites if not suite.startswith(("ECDHE-", "DHE-"))]
        assert not old
        assert suites[0].partition("-")[0] == "ECDHE"
        assert all(suite.endswith(("SHA256", "SHA384", "POLY1305")) for suite in suites), suites


def test_client_of_today_gets_tls_1_3_without_compression(tls_broker: TlsBroker) -> None:
    context = ssl.create_default_context(cafile=str(tls_broker.trusted))
    context.options &= ~ssl.OP_NO_COMPRESSION
    with (
        socket.create_connection((HOST, tls_broker.ports["TLS"]), 30) as sock,
        context.wrap_socket(sock, server_hostname=HOST) as wrapped,
    ):
        assert wrapped.version() == "TLSv1.3"
        assert wrapped.compression() is None

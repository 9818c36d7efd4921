"""The folder of `--secure`: what is created, kept, renewed and refused."""

import json
import logging
import ssl
import stat
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from kwire.configs.declare import ConfigError
from kwire.secure.certificates import SERVER_DAYS
from kwire.secure.folder import NoAuthorityKeyError, SecureFolder
from kwire.secure.upkeep import Upkeep

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
LATER_MS = NOW_MS + SERVER_DAYS * DAY_MS
ADDRESS = "127.0.0.1:9092"


@pytest.fixture
def folder(tmp_path: Path) -> SecureFolder:
    folder = SecureFolder(tmp_path / "data-secure")
    folder.fill(["broker.example"], NOW_MS)
    folder.write_client_files(ADDRESS)
    return folder


def contents(folder: SecureFolder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.path.iterdir()}


def test_only_the_owner_can_read_the_files(folder: SecureFolder) -> None:
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.path.iterdir()}
    names = (
        *("ca.key", "ca.pem", "client.json", "client.properties"),
        *("passwords.json", "server.pem"),
    )
    assert modes == dict.fromkeys(names, 0o600)


def test_folder_that_others_could_read_is_closed(folder: SecureFolder) -> None:
    folder.path.chmod(0o755)
    folder.fill([], NOW_MS)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_next_start_reuses_everything(folder: SecureFolder) -> None:
    before = contents(folder)
    folder.fill(["broker.example"], NOW_MS + DAY_MS)
    folder.write_client_files(ADDRESS)
    assert contents(folder) == before


def test_renewal_replaces_only_the_certificate(folder: SecureFolder) -> None:
    before = contents(folder)
    assert not folder.renew(["broker.example"], NOW_MS)
    assert folder.renew(["broker.example"], LATER_MS)
    after = contents(folder)
    assert {name for name in after if after[name] != before[name]} == {"server.pem"}


def test_key_of_the_authority_is_needed_only_for_a_renewal(folder: SecureFolder) -> None:
    (folder.path / "ca.key").unlink()
    folder.fill(["broker.example"], NOW_MS)
    with pytest.raises(NoAuthorityKeyError, match=r"ca\.key is missing: restore it"):
        folder.renew(["broker.example"], LATER_MS)
    with pytest.raises(ConfigError, match=r"ca\.key is missing"):
        folder.fill(["broker.example"], LATER_MS)


@pytest.mark.parametrize("bytes_kept", [0, 100, 400])
async def test_damaged_certificate_is_made_anew(folder: SecureFolder, bytes_kept: int) -> None:
    """An empty file, one that ends in the key, and one that ends in the certificate."""
    whole = folder.server.read_bytes()
    folder.server.write_bytes(whole[:bytes_kept])
    await Upkeep(folder, ["broker.example"]).renew(NOW_MS)
    renewed = folder.server.read_bytes()
    assert renewed not in (whole, whole[:bytes_kept])
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(folder.server)


async def test_key_with_a_passphrase_ends_no_node(
    folder: SecureFolder, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder.path / "ca.key"
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"passphrase"),
        )
    )
    before = folder.server.read_bytes()
    with caplog.at_level(logging.INFO):
        await Upkeep(folder, ["broker.example"]).renew(LATER_MS)
    (message,) = caplog.messages
    assert message.startswith("certificate not renewed reason=")
    assert folder.server.read_bytes() == before
    with pytest.raises(ConfigError, match=r"--secure: a file in .* is unusable: "):
        folder.fill(["broker.example"], LATER_MS)


def test_new_passwords_come_with_new_client_files(folder: SecureFolder) -> None:
    """Their absence makes the next start set the admin's password."""
    before = folder.passwords
    (folder.path / "passwords.json").unlink()
    folder.fill([], NOW_MS)
    assert folder.passwords != before
    assert not folder.has_client_files


def test_passwords_are_long_and_differ(folder: SecureFolder) -> None:
    assert len(set(folder.passwords)) == 2
    assert all(len(password) >= 43 for password in folder.passwords)


def test_damaged_passwords_are_reported_without_them(folder: SecureFolder) -> None:
    (folder.path / "passwords.json").write_text('{"admin": "secret"}')
    with pytest.raises(ConfigError, match=r"passwords\.json is damaged; delete it") as caught:
        _ = folder.passwords
    assert "secret" not in str(caught.value)


def test_unusable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="Not a directory; name another folder with --secure="):
        SecureFolder(tmp_path / "file" / "secure").fill([], NOW_MS)


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kwire.secure.certificates", None)
    monkeypatch.delattr("kwire.secure.certificates", raising=False)
    with pytest.raises(ConfigError, match=r"need the package cryptography: install kwire\[tls\]"):
        SecureFolder(tmp_path / "secure").fill([], NOW_MS)
    assert not (tmp_path / "secure").exists()


def test_json_file_has_the_settings_of_librdkafka(folder: SecureFolder) -> None:
    assert json.loads(folder.json_client.read_text()) == {
        "bootstrap.servers": ADDRESS,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "admin",
        "sasl.password": folder.passwords.admin,
        "ssl.ca.location": str(folder.authority),
    }

"""The folder of `--secure`: the authority, the server's certificate, passwords and client files.

Rules: only the owner can read the folder (mode 0700, files 0600). Existing files are reused; a file
is replaced atomically, so that a reader never sees half of it. The folder is beside the data
directory, not in it, because Apache Kafka does not start if a data directory contains a folder that
is not a partition. The authority's key may be moved to a safe place; without it, no certificate can
be renewed.
"""

import json
import os
import secrets
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from kwire.configs.declare import ConfigError
from kwire.secure.settings import Passwords, java_file, json_file

if TYPE_CHECKING:
    from types import ModuleType

_PASSWORD_BYTES: Final = 32
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")


class NoAuthorityKeyError(Exception):
    """The authority's key is missing, so no certificate can be signed."""


@attrs.frozen(eq=False)
class SecureFolder:
    """The files of one folder."""

    path: Path

    @property
    def authority(self) -> Path:
        """The certificate that clients trust."""
        return self.path / "ca.pem"

    @property
    def server(self) -> Path:
        """The private key and the certificate of the nodes."""
        return self.path / "server.pem"

    @property
    def java_client(self) -> Path:
        return self.path / "client.properties"

    @property
    def json_client(self) -> Path:
        return self.path / "client.json"

    @property
    def _authority_key(self) -> Path:
        return self.path / "ca.key"

    @property
    def passwords(self) -> Passwords:
        """The passwords in the folder; raises ConfigError if the file is damaged."""
        path = self.path / "passwords.json"
        try:
            return Passwords(**json.loads(path.read_bytes()))
        except (ValueError, TypeError):
            raise ConfigError(
                f"{path} is damaged; delete it, and the next start creates new passwords"
            ) from None

    @property
    def has_client_files(self) -> bool:
        """True once a start has set the admin's password."""
        return self.java_client.exists() and self.json_client.exists()

    def fill(self, hosts: Iterable[str], now_ms: int) -> None:
        """Create missing files, and renew the certificate if that is due; raise ConfigError.

        ``hosts`` are the hosts that the certificate must name in addition to this machine's own
        names.
        """
        certificates = _certificates()
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.chmod(0o700)
            if not self.authority.exists():
                authority = certificates.new_authority(socket.gethostname(), now_ms)
                self._write(self._authority_key, authority.key)
                self._write(self.authority, authority.certificate)
            if not (self.path / "passwords.json").exists():
                for path in (self.java_client, self.json_client):
                    path.unlink(missing_ok=True)
                passwords = Passwords(*(secrets.token_urlsafe(_PASSWORD_BYTES) for _ in range(2)))
                text = json.dumps(passwords._asdict(), indent=2) + "\n"
                self._write(self.path / "passwords.json", text.encode())
            self.renew(hosts, now_ms)
        except NoAuthorityKeyError as error:
            raise ConfigError(str(error)) from error
        except OSError as error:
            raise ConfigError(
                f"--secure: cannot use {error.filename or self.path}: {error.strerror}; name "
                "another folder with --secure=FOLDER"
            ) from error
        except (TypeError, ValueError) as error:  # A damaged file, or a key with a passphrase.
            raise ConfigError(f"--secure: a file in {self.path} is unusable: {error}") from error

    def renew(self, hosts: Iterable[str], now_ms: int) -> bool:
        """Replace the server's certificate if that is due; return whether it was replaced.

        Raises NoAuthorityKeyError, or OSError.
        """
        certificates, authority = _certificates(), self.authority.read_bytes()
        names = list(dict.fromkeys([*hosts, *_LOCAL, socket.gethostname()]))
        if self.server.exists() and not certificates.is_due(
            self.server.read_bytes(), authority, names, now_ms
        ):
            return False
        try:
            key = self._authority_key.read_bytes()
        except FileNotFoundError:
            raise NoAuthorityKeyError(
                f"{self.server} must be renewed, and {self._authority_key} is missing: "
                "restore it, or delete the folder for a new authority"
            ) from None
        signer = certificates.Authority(key, authority)
        self._write(self.server, certificates.new_server(signer, names, now_ms))
        return True

    def write_client_files(self, bootstrap: str) -> None:
        """Write the admin's client files, for clients of these addresses; raise OSError."""
        password, authority = self.passwords.admin, self.authority.absolute()
        makers: dict[Path, Callable[[str, str, Path], str]] = {
            self.java_client: java_file,
            self.json_client: json_file,
        }
        for path, make in makers.items():
            data = make(bootstrap, password, authority).encode()
            if not path.exists() or path.read_bytes() != data:
                self._write(path, data)

    def _write(self, path: Path, data: bytes) -> None:
        """Replace a file; only its owner can read it, even while it is being written."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)


def _certificates() -> "ModuleType":
    try:
        from kwire.secure import certificates
    except ImportError:
        raise ConfigError(
            "certificates need the package cryptography: install kwire[tls], as with "
            "pip install 'kwire[tls]'"
        ) from None
    return certificates

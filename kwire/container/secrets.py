"""The TLS files that a container's environment names, by the rules of Apache Kafka's image.

Pure, except for the function that reads a file. ``KAFKA_SSL_KEYSTORE_FILENAME`` is a file in
``/etc/kafka/secrets``, and ``KAFKA_SSL_KEYSTORE_CREDENTIALS`` a file there with its password; the
trust store and the key work the same way. The resulting settings override variables that set them
directly.

Two rules are wider than those of Apache's image: the trust store is also used without client
authentication, and a store or key without a CREDENTIALS variable has no password, as in PEM.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from kwire.configs.declare import ConfigError

SECRETS: Final = Path("/etc/kafka/secrets")
_FILES: Final[Mapping[str, str]] = {
    "KAFKA_SSL_KEYSTORE_FILENAME": "KAFKA_SSL_KEYSTORE_LOCATION",
    "KAFKA_SSL_TRUSTSTORE_FILENAME": "KAFKA_SSL_TRUSTSTORE_LOCATION",
}
_PASSWORDS: Final[Mapping[str, str]] = {
    "KAFKA_SSL_KEYSTORE_CREDENTIALS": "KAFKA_SSL_KEYSTORE_PASSWORD",
    "KAFKA_SSL_TRUSTSTORE_CREDENTIALS": "KAFKA_SSL_TRUSTSTORE_PASSWORD",
    "KAFKA_SSL_KEY_CREDENTIALS": "KAFKA_SSL_KEY_PASSWORD",
}


def with_secrets(environment: Mapping[str, str], read: Callable[[Path], str]) -> Mapping[str, str]:
    """Return the environment with settings instead of the variables that name TLS files.

    ``read`` returns the text of a file. Raises ConfigError for a file that cannot be read.
    """
    changed = dict(environment)
    for variable, setting in _FILES.items():
        name = changed.pop(variable, "")
        if name:
            changed[setting] = str(SECRETS / name)
    for variable, setting in _PASSWORDS.items():
        name = changed.pop(variable, "")
        if not name:
            continue
        try:
            password = read(SECRETS / name).rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{variable}={name}: cannot read the password: {error}") from error
        # The variables are lines of a properties file, in which a backslash escapes.
        changed[setting] = password.replace("\\", "\\\\")
    return changed

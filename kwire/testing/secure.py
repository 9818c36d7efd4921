"""A protected test broker: its files, and the settings of its clients."""

from pathlib import Path
from typing import TYPE_CHECKING

from kwire.configs.declare import ConfigError
from kwire.testing.clock import machine_ms
from kwire.testing.errors import BrokerError

if TYPE_CHECKING:
    from kwire.secure.folder import SecureFolder


def open_folder(data: Path) -> "SecureFolder":
    """Return the files of a broker, in a folder beside its data; raise BrokerError."""
    from kwire.secure.folder import SecureFolder
    from kwire.secure.location import default_folder

    folder = SecureFolder(default_folder({"log.dirs": str(data.absolute())}))
    try:
        folder.fill((), machine_ms())
    except ConfigError as error:
        raise BrokerError(f"the broker cannot start: {error}") from error
    return folder


def client_settings(bootstrap: str, folder: "SecureFolder | None", library: str) -> dict[str, str]:
    """Return a client's settings in the form that a library expects; raise BrokerError."""
    if library not in ("confluent-kafka", "kafka-python"):
        raise BrokerError(
            f"there are no settings for {library}: name confluent-kafka or kafka-python"
        )
    if folder is None:
        name = "bootstrap.servers" if library == "confluent-kafka" else "bootstrap_servers"
        return {name: bootstrap}
    from kwire.secure.settings import kafka_python_settings, librdkafka_settings

    make = librdkafka_settings if library == "confluent-kafka" else kafka_python_settings
    return make(bootstrap, folder.passwords.admin, folder.authority)

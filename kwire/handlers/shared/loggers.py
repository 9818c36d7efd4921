"""The levels of this process's loggers, as settings that last until the process ends (KIP-412).

A logger has the name of its module. The name of a folder, such as ``kwire.log``, is the parent of
all its modules' loggers, and ``root`` that of all loggers. The levels have Kafka's names.
"""

import logging
from typing import Final

from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from kwire.configs.describe import Entry
from kwire.errors import InvalidConfig, InvalidRequest
from kwire.handlers.shared.config_resources import parse_id
from kwire.raftmeta.controller.configs import APPEND, DELETE, SET, SUBTRACT, check_operands

Resource = IncrementalAlterConfigsRequest.AlterConfigsResource
Change = Resource.AlterableConfig

logger = logging.getLogger(__name__)

ROOT: Final = "root"
_SOURCE: Final = 6
_LEVELS: Final = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG // 2,
}
"""Python's numbers of Kafka's levels; nothing is logged at TRACE."""


def describe_levels() -> list[Entry]:
    """Return the level in force of each logger, inherited or its own."""
    return [
        Entry(name=name, value=_name_of(_logger(name).getEffectiveLevel()), source=_SOURCE)
        for name in (ROOT, *sorted(logging.Logger.manager.loggerDict))
    ]


def alter_levels(resource: Resource, node_id: int, validate_only: bool) -> None:
    """Set or delete levels of this node's loggers: all that the request names, or none.

    A logger without its own level has that of its parent. Raises KafkaError.
    """
    check_operands([(c.name, c.config_operation, c.value) for c in resource.configs])
    _check_own(resource.resource_name, node_id)
    levels = {change.name: _new_level(change) for change in resource.configs}
    if validate_only:
        return
    for name, level in levels.items():
        _logger(name).setLevel(level)
        logger.info("log level changed logger=%s level=%s", name, logging.getLevelName(level))


def _check_own(name: str, node_id: int) -> None:
    if parse_id(name, "Node") != node_id:
        raise InvalidRequest(f"Unexpected node id. Expected {node_id}, but received {name}")


def _new_level(change: Change) -> int:
    """Return the number of the level that a change sets; raise KafkaError."""
    name, operation = change.name, change.config_operation
    if operation in (APPEND, SUBTRACT):
        word = "APPEND" if operation == APPEND else "SUBTRACT"
        raise InvalidRequest(f"{word} operation is not allowed for the BROKER_LOGGER resource")
    if operation not in (SET, DELETE):
        raise InvalidRequest(f"Unknown operation type id {operation}")
    if name != ROOT and name not in logging.Logger.manager.loggerDict:
        raise InvalidConfig(f"Logger {name} does not exist!")
    if operation == SET:
        if change.value not in _LEVELS:
            raise InvalidConfig(
                f"Cannot set the log level of {name} to {change.value} as it is not a supported "
                f"log level. Valid log levels are {', '.join(sorted(_LEVELS))}"
            )
        return _LEVELS[change.value]
    if name == ROOT:
        raise InvalidRequest(f"Removing the log level of the {ROOT} logger is not allowed")
    return logging.NOTSET


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def _name_of(level: int) -> str:
    """Return the name of a level, or of the next lower one if it is none of Kafka's."""
    return next((name for name, number in _LEVELS.items() if level >= number), "TRACE")

"""A problem of a configuration, as its rules yield it."""

from typing import TypeAlias

Problem: TypeAlias = tuple[str, str]
"""The path of a key, and what is wrong with its value."""

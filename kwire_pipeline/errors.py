"""The two ways in which a pipeline command fails, and their exit codes."""

from typing import Final

EXIT_FAILURE: Final = 1
EXIT_REFUSAL: Final = 2


class Refusal(Exception):
    """A set-up with which the pipeline does not run: one sentence that says what to do.

    A rerun without a change is refused again. Whatever was written before it stays exact.
    """


class Permanent(Refusal):
    """A refusal that only another file, flag or program ends, which a run reads once.

    Any other refusal may end while a run goes on: somebody restores a table, or grants a right.
    """


class Held(Refusal):
    """Another run writes with the checkpoint now; a run of many tables waits for its end."""


class Failure(Exception):
    """A failure that a rerun may cure, such as an unreachable broker or a full disk."""


class Overtaken(Failure):
    """Another run has taken this run's place, so this run does not try again by itself."""

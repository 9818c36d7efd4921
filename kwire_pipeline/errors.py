"""The two ways in which a pipeline command fails, and their exit codes."""

from typing import Final

EXIT_FAILURE: Final = 1
EXIT_REFUSAL: Final = 2


class Refusal(Exception):
    """The pipeline does not run with this set-up: one sentence that says what to do.

    A rerun without a change is refused again. Batches that were written earlier stay exact.
    """


class Permanent(Refusal):
    """A refusal that is final for a run: only another file, flag or program can cure it.

    A run reads these only once. Other refusals may be cured during a run, when somebody restores a
    table or grants a permission.
    """


class Held(Refusal):
    """Another run writes with the checkpoint now; a run of many tables waits for its end."""


class Failure(Exception):
    """A failure that a rerun may cure, such as an unreachable broker or a full disk."""


class Overtaken(Failure):
    """Another run has taken over from this run, so this run does not retry on its own."""

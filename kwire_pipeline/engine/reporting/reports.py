"""Reports of a run: a line that is updated on a terminal, or a line of JSON per batch."""

from collections.abc import Callable
from typing import TextIO

from kwire_pipeline.config.values import Progress
from kwire_pipeline.engine.reporting.figures import Batch, Tally

CLEAR = "\r\x1b[2K"


class Reporter:
    """The reports of one run on one output."""

    def __init__(self, progress: Progress, output: TextIO, redact: Callable[[str], str]) -> None:
        is_terminal = output.isatty()
        if progress is Progress.AUTO:
            progress = Progress.TERMINAL if is_terminal else Progress.JSON
        self._progress = progress
        self._output = output
        self._redact = redact
        self._tally = Tally()

    def on_batch(self, batch: Batch, table: str | None = None) -> None:
        """Report a batch as soon as it is written; ``table`` is named if there are many tables."""
        match self._progress:
            case Progress.JSON:
                self._print(batch.dump(table) + "\n")
            case Progress.TERMINAL:
                self._tally.add(batch, {})
                whose = "" if table is None else f"{table} "
                rate = batch.offsets / batch.elapsed_s if batch.elapsed_s else 0.0
                self._print(
                    f"{CLEAR}{whose}batch {batch.batch_id}: {self._tally.rows:,} rows, "
                    f"{self._tally.dead_letters:,} dead letters, {rate:,.0f} offsets/s, "
                    f"lag {'unknown' if batch.lag is None else f'{batch.lag:,}'}"
                )

    def on_end(self, tally: Tally) -> None:
        """Report the tally of the run."""
        if self._progress is Progress.TERMINAL:
            self._print(CLEAR)
        if self._progress is not Progress.NONE:
            self._print("\n".join(tally.words()) + "\n")

    def _print(self, text: str) -> None:
        self._output.write(self._redact(text))
        self._output.flush()

"""Charts of one day in SVG, inside a page of HTML: their colours come from the page's style.

Rules of this file: a chart is readable without a script; each mark has its figures as a tooltip.
"""

import datetime
from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise
from typing import Final

import attrs

WIDTH: Final = 560
HEIGHT: Final = 180
LEFT: Final = 64
RIGHT: Final = 10
TOP: Final = 10
BOTTOM: Final = 26
STEPS: Final = (1, 2, 5)
MAX_LINES: Final = 4
LABEL_HOURS: Final = 4
HALF_LABEL: Final = 16
HOUR: Final = datetime.timedelta(hours=1)


@attrs.frozen
class Bar:
    """The value of an hour; None if it is not known."""

    start: datetime.datetime
    value: int | None
    words: str


@attrs.frozen
class Dot:
    """A value at a time."""

    at: datetime.datetime
    value: float
    words: str


@attrs.frozen
class Axes:
    """The places of times and values in a chart."""

    start: datetime.datetime
    end: datetime.datetime
    top: float
    """The highest value of the scale."""

    def x(self, at: datetime.datetime) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ((at - self.start) / (self.end - self.start))

    def y(self, value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / self.top)


def step_of(highest: float) -> float:
    """Return a round distance of at most four lines up to a number."""
    factor = 0.001
    while True:
        for step in STEPS:
            if step * factor * MAX_LINES >= highest:
                return step * factor
        factor *= 10


def axes_of(
    start: datetime.datetime, end: datetime.datetime, values: Iterable[float], least: float
) -> tuple[Axes, float]:
    """Return the axes for some values, and the distance of the lines, at least ``least``."""
    highest = max(values, default=0)
    step = max(step_of(highest), least)
    lines = max(1, -(-highest // step))
    return Axes(start, end, lines * step), step


def bars(values: Sequence[Bar], title: str, kind: str) -> str:
    """Return a chart with a bar for each hour; ``kind`` is the class of its colour."""
    first, last = values[0].start, values[-1].start + HOUR
    axes, step = axes_of(first, last, (bar.value or 0 for bar in values), 1)
    parts = frame(axes, step, title)
    for bar in values:
        if bar.value is None:
            continue
        x, y = axes.x(bar.start) + 1, axes.y(bar.value)
        width = axes.x(bar.start + HOUR) - axes.x(bar.start) - 2
        parts.append(
            f'<rect class="bar {kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{axes.y(0) - y:.1f}">{tooltip(bar.words)}</rect>'
        )
    return finish(parts)


def line(
    values: Sequence[Dot], start: datetime.datetime, end: datetime.datetime, title: str, kind: str
) -> str:
    """Return a chart with a line through the values."""
    axes, step = axes_of(start, end, (dot.value for dot in values), 1)
    parts = frame(axes, step, title)
    for before, after in pairwise(values):
        parts.append(
            f'<line class="{kind}" x1="{axes.x(before.at):.1f}" y1="{axes.y(before.value):.1f}" '
            f'x2="{axes.x(after.at):.1f}" y2="{axes.y(after.value):.1f}"/>'
        )
    return finish(parts + points(axes, values, kind))


def dots(
    values: Sequence[Dot], start: datetime.datetime, end: datetime.datetime, title: str, kind: str
) -> str:
    """Return a chart with a dot for each value."""
    axes, step = axes_of(start, end, (dot.value for dot in values), 0.001)
    return finish(frame(axes, step, title) + points(axes, values, kind))


def points(axes: Axes, values: Iterable[Dot], kind: str) -> list[str]:
    return [
        f'<circle class="dot {kind}" cx="{axes.x(dot.at):.1f}" cy="{axes.y(dot.value):.1f}" '
        f'r="3">{tooltip(dot.words)}</circle>'
        for dot in values
    ]


def frame(axes: Axes, step: float, title: str) -> list[str]:
    """Return the beginning of a chart: its title, the lines of the scale and the hours."""
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
    ]
    for number in range(round(axes.top / step) + 1):
        y = axes.y(number * step)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label(number * step)}</text>'
        )
    hour = axes.start.replace(minute=0, second=0, microsecond=0)
    while hour <= axes.end:
        if hour >= axes.start and hour.hour % LABEL_HOURS == 0:
            x = axes.x(hour)
            label_x = min(x, WIDTH - HALF_LABEL)  # The last one would not have enough room.
            parts.append(
                f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{HEIGHT - BOTTOM}" '
                f'y2="{HEIGHT - BOTTOM + 4}"/>'
            )
            parts.append(
                f'<text x="{label_x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{hour:%H}:00</text>'
            )
        hour += HOUR
    return parts


def label(value: float) -> str:
    """Return a number of the scale, shortened above a million."""
    for limit, sign in ((1e9, "G"), (1e6, "M")):
        if value >= limit:
            return f"{value / limit:,.10g}{sign}"
    return f"{round(value, 3):,.10g}"


def tooltip(words: str) -> str:
    return f"<title>{escape(words)}</title>"


def finish(parts: Iterable[str]) -> str:
    return "\n".join([*parts, "</svg>"])

"""A page of HTML that shows the last 24 hours of a pipeline, or of each of many tables.

The page is one file without scripts, light or dark as the reader's system. It is well-formed XML,
too. All times are in UTC.

Rules of this file: no I/O; each text that is not the page's own is hidden like a secret if it is
one, and escaped.
"""

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from statistics import median
from typing import Final

import attrs

from kwire_pipeline.day.chart import Bar, Dot, bars, dots, line
from kwire_pipeline.day.figures import HOUR, Day, Hour
from kwire_pipeline.engine.reporting.figures import OTHER_REASONS

MAX_REASONS: Final = 10
UNKNOWN: Final = "unknown"
STYLE: Final = """
:root{color-scheme:light dark;--page:#fff;--card:#f6f8fa;--text:#1f2328;--soft:#59636e;
--line:#d1d9e0;--rows:#2f6f9f;--letters:#b35900;--lag:#6f42c1;--time:#2a7a4b;--bad:#b3261e}
@media (prefers-color-scheme:dark){:root{--page:#0d1117;--card:#161b22;--text:#e6edf3;
--soft:#9198a1;--line:#30363d;--rows:#5aa9e0;--letters:#e8964a;--lag:#b392f0;--time:#56c288;
--bad:#ff7b72}}
body{margin:0 auto;max-width:1200px;padding:24px 16px;background:var(--page);color:var(--text);
font:15px/1.45 system-ui,sans-serif}
h1{font-size:22px;margin:0}h2{font-size:18px;margin:40px 0 4px}h3{font-size:14px;margin:20px 0 4px}
p{margin:4px 0 12px}.soft,figcaption,th,dt{color:var(--soft)}figcaption,small{font-size:13px}
.bad{color:var(--bad);font-weight:600}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(145px,1fr));gap:12px;margin:12px 0}
.tiles div,figure{background:var(--card);border:1px solid var(--line);border-radius:8px;
padding:10px 14px;margin:0}.tiles dt{font-size:13px}.tiles dd{margin:0;font-size:20px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:12px}
svg{display:block;width:100%;height:auto}text{font:11px system-ui,sans-serif;fill:var(--soft)}
.grid{stroke:var(--line)}.rows{fill:var(--rows)}.letters{fill:var(--letters)}
.time{fill:var(--time)}.lag{fill:var(--lag);stroke:var(--lag);stroke-width:2}
.table{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:14px}
th,td{padding:5px 12px 5px 0;text-align:left;border-bottom:1px solid var(--line);
vertical-align:top}.number{text-align:right;font-variant-numeric:tabular-nums}
.reasons{max-width:640px}
details{margin:12px 0}summary{cursor:pointer}a{color:inherit}
"""


@attrs.frozen(kw_only=True)
class Section:
    """The part of the page about one table."""

    table: str
    topics: str
    lag: int | None = None
    batch_id: int | None = None
    is_half_done: bool = False
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    problem: str | None = None
    """The reason why the last run failed, or why there are no figures."""
    problem_at: str | None = None
    day: Day | None = None
    """None if the table is not written yet, or if its figures cannot be read."""

    @property
    def state(self) -> str:
        """The state in one or two words."""
        if self.problem is not None:
            return "failed" if self.day is not None else "no figures"
        if self.day is None:
            return "not written yet"
        return "half-done batch" if self.is_half_done else "fine"


@attrs.frozen
class Page:
    """The page of one file of a pipeline."""

    pipeline: str
    now: datetime.datetime
    redact: Callable[[str], str]

    def html(self, sections: Sequence[Section]) -> str:
        """Return the page; tables with a problem come first."""
        ordered = sorted(sections, key=lambda section: section.problem is None)
        title = self.text(f"Pipeline {self.pipeline}: the last 24 hours")
        start = self.now - datetime.timedelta(days=1)
        parts = [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>',
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
            f"<title>{title}</title><style>{STYLE}</style></head><body>",
            f"<h1>{title}</h1>",
            f'<p class="soft">{moment(start)} to {moment(self.now)}, in UTC</p>',
            self.overview(ordered),
            *(self.section(number, section) for number, section in enumerate(ordered)),
            "</body></html>\n",
        ]
        return "\n".join(parts)

    def text(self, words: str) -> str:
        printable = (char if char.isprintable() else " " for char in self.redact(words))
        return escape("".join(printable))

    def overview(self, sections: Sequence[Section]) -> str:
        """Return a table with a row for each table of the pipeline."""
        rows = []
        for number, section in enumerate(sections):
            name = f'<a href="#table-{number}">{self.text(section.table)}</a>'
            day = section.day
            batches = () if day is None else day.batches
            state = self.text(section.state)
            rows.append(
                [
                    name,
                    self.text(section.topics),
                    f'<span class="bad">{state}</span>' if section.problem else state,
                    in_digits(None if day is None else day.rows),
                    in_digits(None if day is None else day.letters),
                    in_digits(section.lag),
                    moment(batches[-1].at) if batches else "",
                    in_digits(section.rows),
                    in_digits(section.files),
                    in_digits(section.bytes),
                ]
            )
        names = (
            *("table", "topics", "state", "rows written", "dead letters", "lag", "last batch"),
            *("rows in the table", "files", "bytes"),
        )
        return table_of("overview", names, rows, first_number=3)

    def section(self, number: int, section: Section) -> str:
        """Return the figures, charts and tables of one table."""
        parts = [
            f'<section id="table-{number}"><h2>{self.text(section.table)}</h2>',
        ]
        if section.problem is not None:
            kind = "The last run failed" if section.day is not None else "There are no figures"
            at = "" if section.problem_at is None else f" ({section.problem_at})"
            parts.append(f'<p class="bad">{self.text(f"{kind}{at}: {section.problem}")}</p>')
        elif section.day is None:
            parts.append("<p>The table is not written yet.</p>")
        elif section.is_half_done:
            parts.append("<p>A batch is half done: a run is writing it, or the next run will.</p>")
        if section.day is not None:
            parts += [
                f'<p class="soft"><small>{self.text(origin_of(section.day))}</small></p>',
                tiles(section, section.day),
                charts(section.day),
                self.reasons(section.day.reasons),
                figures_by_hour(section.day),
            ]
        return "\n".join([*parts, "</section>"])

    def reasons(self, counts: Mapping[str, int]) -> str:
        """Return the most frequent reasons of dead letters as a table, if there are any."""
        if not counts:
            return ""
        named = {reason: count for reason, count in counts.items() if reason != OTHER_REASONS}
        ordered = sorted(named.items(), key=lambda item: (-item[1], item[0]))
        rest = sum(count for _, count in ordered[MAX_REASONS:]) + counts.get(OTHER_REASONS, 0)
        rows = [[self.text(reason), in_digits(count)] for reason, count in ordered[:MAX_REASONS]]
        rows += [[OTHER_REASONS, in_digits(rest)]] if rest else []
        head = "<h3>Dead letters that are still there, by reason</h3>"
        return head + table_of("reasons", ("reason", "dead letters"), rows, first_number=1)


def origin_of(day: Day) -> str:
    """Return the sentences that say where the figures come from, and how far back they go."""
    return (
        "Rows and dead letters come from the history of the tables and from Spark's checkpoint "
        f"({back(day.since)}), durations from the checkpoint ({back(day.steps_since)}). Lag counts "
        "the offsets that no batch had read, of records with an earlier timestamp."
    )


def back(since: datetime.datetime | None) -> str:
    return "the whole day" if since is None else f"since {moment(since)}"


def tiles(section: Section, day: Day) -> str:
    """Return the figures of the day."""
    seconds = [batch.seconds for batch in day.batches if batch.seconds is not None]
    times = f"{median(seconds):,.1f} s, {max(seconds):,.1f} s" if seconds else UNKNOWN
    last = day.batches[-1] if day.batches else None
    values = (
        ("rows written", in_digits(day.rows) or UNKNOWN),
        ("offsets read", in_digits(day.offsets)),
        ("dead letters", in_digits(day.letters) or UNKNOWN),
        ("lag now", in_digits(section.lag)),
        ("batches", in_digits(len(day.batches))),
        ("batch: median, longest", times),
        ("last batch", f"{last.batch_id}, {last.at:%H:%M}" if last is not None else "none"),
    )
    return (
        '<dl class="tiles">'
        + "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in values)
        + "</dl>"
    )


def charts(day: Day) -> str:
    """Return the four charts of a day."""
    hours = day.hours()
    # In a table that is changed by key, the history does not say how many rows a batch changed.
    by_rows = day.rows is not None
    name = "Rows written by hour" if by_rows else "Offsets read by hour"
    values = [(hour, hour.rows if by_rows else hour.offsets) for hour in hours]
    lags = [Dot(at, lag, f"{moment(at)}: {lag:,} behind") for at, lag in sorted(day.lags.items())]
    durations = [
        Dot(
            batch.at,
            batch.seconds,
            f"batch {batch.batch_id}, {moment(batch.at)}: "
            f"{batch.seconds:,.1f} s for {batch.ranges.count:,} offsets",
        )
        for batch in day.batches
        if batch.seconds is not None
    ]
    # All charts have the same axis of time.
    times = hours[0].start, hours[-1].start + HOUR
    letters = [(hour, hour.letters) for hour in hours]
    return (
        '<div class="charts">'
        + figure(bars([bar(*value) for value in values], name, "rows"), name)
        + figure(bars([bar(*value) for value in letters], LETTERS, "letters"), LETTERS)
        + figure(line(lags, *times, LAG, "lag"), LAG)
        + figure(dots(durations, *times, DURATION, "time"), DURATION)
        + "</div>"
    )


LETTERS: Final = "Dead letters by hour"
LAG: Final = "Lag in offsets"
DURATION: Final = "Duration of each batch in seconds"


def bar(hour: Hour, value: int | None) -> Bar:
    return Bar(hour.start, value, f"{moment(hour.start)}: {in_digits(value) or UNKNOWN}")


def figure(svg: str, name: str) -> str:
    return f"<figure><figcaption>{name}</figcaption>{svg}</figure>"


def figures_by_hour(day: Day) -> str:
    """Return the numbers of the charts as a table that opens."""
    rows = []
    for hour in day.hours():
        lag = day.lags.get(hour.start)
        numbers = (hour.rows, hour.offsets, hour.letters, lag)
        rows.append([moment(hour.start), *map(in_digits, numbers)])
    names = ("hour from", "rows", "offsets", "dead letters", "lag at its start")
    return (
        "<details><summary>Figures by hour</summary>"
        + table_of("hours", names, rows, first_number=1)
        + "</details>"
    )


def table_of(
    kind: str, names: Sequence[str], rows: Iterable[Sequence[str]], *, first_number: int
) -> str:
    """Return a table of HTML; the cells are already escaped."""

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f'<{tag} class="number">{cell}</{tag}>'
            if n >= first_number
            else f"<{tag}>{cell}</{tag}>"
            for n, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'<div class="table"><table class="{kind}"><thead><tr>{cells("th", names)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def moment(at: datetime.datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M}"


def in_digits(number: int | None) -> str:
    return "" if number is None else f"{number:,}"

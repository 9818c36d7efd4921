"""The page of a day: its figures are those of the day, and its marks are where they belong."""

import datetime
import re
import xml.etree.ElementTree as ElementTree

import pytest

from kwire_pipeline.day.chart import Axes, step_of
from kwire_pipeline.day.figures import Day, Done
from kwire_pipeline.day.page import Page, Section
from kwire_pipeline.engine.offsets import Ranges
from kwire_pipeline.engine.reporting.figures import OTHER_REASONS

END = datetime.datetime(2026, 11, 27, 10, 30, tzinfo=datetime.UTC)
START = END - datetime.timedelta(days=1)
HOUR = datetime.timedelta(hours=1)


def batch_at(
    hours: float, rows: int | None, letters: int | None, seconds: float | None = 2.5
) -> Done:
    return Done(
        batch_id=round(hours),
        at=START + hours * HOUR,
        ranges=Ranges.parse('{"orders":{"0":[0,50]}}'),
        rows=rows,
        letters=letters,
        seconds=seconds,
    )


def day(*batches: Done, **fields: object) -> Day:
    lags = {START + 1.5 * HOUR: 40, END: 1_234}
    whole: dict[str, object] = {"lags": lags, "reasons": {}, **fields}
    return Day(start=START, end=END, batches=batches, **whole)  # type: ignore[arg-type]


def section(own: Day | None, **fields: object) -> Section:
    whole: dict[str, object] = {"table": "shop.orders", "topics": "orders", "lag": 1_234, **fields}
    return Section(day=own, **whole)  # type: ignore[arg-type]


def page(*sections: Section) -> ElementTree.Element:
    """Return the page, read as XML, which every element of it has to be."""
    output = Page("orders", END, lambda text: text.replace("hunter2", "***"))
    return ElementTree.fromstring(output.html(sections))


def text_of(element: ElementTree.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def cells(root: ElementTree.Element, kind: str) -> list[list[str]]:
    """Return the rows of a table."""
    rows = root.findall(f".//table[@class='{kind}']/tbody/tr")
    return [[text_of(cell) for cell in row] for row in rows]


def tiles(root: ElementTree.Element) -> dict[str, str]:
    tile = root.findall(".//dl/div")
    return {text_of(each[0]): text_of(each[1]) for each in tile}


BUSY = day(batch_at(0.2, 36, 4), batch_at(0.4, 10, 0, 5.0), batch_at(23.9, 1_000, 60))


def test_figures_of_the_page_are_those_of_the_day() -> None:
    assert tiles(page(section(BUSY))) == {
        "rows written": "1,046",
        "offsets read": "150",
        "dead letters": "64",
        "lag now": "1,234",
        "batches": "3",
        "batch: median, longest": "2.5 s, 5.0 s",
        "last batch": "24, 10:24",
    }


def test_hours_of_the_page_add_up_to_its_figures() -> None:
    hours = cells(page(section(BUSY)), "hours")
    assert len(hours) == 25
    assert hours[0] == ["2026-11-26 10:00", "46", "100", "4", ""]
    assert hours[2] == ["2026-11-26 12:00", "0", "0", "0", "40"]
    assert hours[-1] == ["2026-11-27 10:00", "1,000", "50", "60", ""]


def heights(root: ElementTree.Element, kind: str) -> list[float]:
    return [float(bar.get("height", "")) for bar in root.findall(f".//rect[@class='bar {kind}']")]


def test_bars_are_as_high_as_their_values() -> None:
    root = page(section(day(batch_at(0.2, 40, 2), batch_at(5, 10, 8))))
    rows, letters = heights(root, "rows"), heights(root, "letters")
    assert len(rows) == len(letters) == 25
    assert rows[0] == pytest.approx(4 * rows[5], abs=0.2)
    assert letters[5] == pytest.approx(4 * letters[0], abs=0.2)
    assert sum(height > 0 for height in rows) == 2
    first = root.find(".//rect[@class='bar rows']/title")
    assert first is not None
    assert first.text == "2026-11-26 10:00: 40"


def test_every_mark_is_inside_its_chart_and_in_the_order_of_time() -> None:
    root = page(section(BUSY))
    for svg in root.findall(".//svg"):
        width, height = map(float, svg.get("viewBox", "").split()[2:])
        for mark in svg.iter():
            for name, value in mark.items():
                if re.fullmatch("x|x1|x2|cx", name):
                    assert 0 <= float(value) <= width, (mark.tag, name)
                if re.fullmatch("y|y1|y2|cy", name):
                    assert 0 <= float(value) <= height, (mark.tag, name)
    lags = [float(dot.get("cx", "")) for dot in root.findall(".//circle[@class='dot lag']")]
    assert lags == sorted(lags)
    assert len(lags) == 2
    times = root.findall(".//circle[@class='dot time']/title")
    assert [title.text for title in times][1:2] == [
        "batch 0, 2026-11-26 10:54: 5.0 s for 50 offsets"
    ]


def test_offsets_are_shown_where_rows_are_not_known() -> None:
    root = page(section(day(batch_at(1, None, 3), batch_at(2, None, 0))))
    captions = [text_of(each) for each in root.findall(".//figcaption")]
    assert captions[0] == "Offsets read by hour"
    assert tiles(root)["rows written"] == "unknown"
    assert max(heights(root, "rows")) > 0
    assert cells(root, "overview")[0][3] == ""


def test_page_says_how_far_back_its_history_goes() -> None:
    words = text_of(page(section(day(since=END - HOUR, steps_since=None))))
    assert "checkpoint (since 2026-11-27 09:30), durations" in words
    assert "durations from the checkpoint (the whole day)." in words


def test_most_frequent_reasons_come_first() -> None:
    reasons = {f"reason {number:02}": number for number in range(1, 13)}
    root = page(section(day(reasons={**reasons, OTHER_REASONS: 100})))
    shown = cells(root, "reasons")
    assert shown[0] == ["reason 12", "12"]
    assert shown[9] == ["reason 03", "3"]
    assert shown[10:] == [[OTHER_REASONS, "103"]]


def test_tables_with_a_problem_come_first_and_hide_secrets() -> None:
    root = page(
        section(BUSY, table="raw.a", rows=5, files=2, bytes=1_000, is_half_done=True),
        section(None, table="raw.b", lag=None),
        section(
            BUSY, table="raw.c", problem="no <hunter2> \x00", problem_at="2026-11-27T01:02:03Z"
        ),
        section(None, table="raw.d", problem="no schema", lag=None),
    )
    overview = cells(root, "overview")
    assert [(row[0], row[2]) for row in overview] == [
        ("raw.c", "failed"),
        ("raw.d", "no figures"),
        ("raw.a", "half-done batch"),
        ("raw.b", "not written yet"),
    ]
    assert overview[2][3:] == ["1,046", "64", "1,234", "2026-11-27 10:24", "5", "2", "1,000"]
    words = text_of(root)
    assert "The last run failed (2026-11-27T01:02:03Z): no <***>" in words
    assert "hunter2" not in words
    assert "There are no figures: no schema" in words
    links = [link.get("href", "")[1:] for link in root.findall(".//a")]
    assert links == [each.get("id") for each in root.findall(".//section")]


def test_page_needs_nothing_from_elsewhere() -> None:
    text = Page("orders", END, str).html([section(BUSY)])
    assert "prefers-color-scheme:dark" in text
    assert not re.search(r"<script|<link|<img|url\(|@import|src=|https?://", text)


@pytest.mark.parametrize(
    ("highest", "step"), [(0.003, 0.001), (4, 1), (5, 2), (9, 5), (40, 10), (1_234_567, 500_000)]
)
def test_scale_has_at_most_four_round_steps(highest: float, step: float) -> None:
    assert step_of(highest) == pytest.approx(step)


def test_highest_value_is_at_the_top() -> None:
    axes = Axes(START, END, 10)
    assert axes.y(10) < axes.y(5) < axes.y(0)
    assert axes.x(START) < axes.x(END)

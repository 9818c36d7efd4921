"""The picture of the worked example: a bar for each hour, in SVG."""

import datetime
import importlib.util
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "orders_by_hour.py"
SPEC = importlib.util.spec_from_file_location("orders_by_hour", SCRIPT)
assert SPEC is not None
assert SPEC.loader is not None
orders_by_hour = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(orders_by_hour)
SVG = "{http://www.w3.org/2000/svg}"


def at(hour: int, minute: int) -> datetime.datetime:
    return datetime.datetime(2026, 11, 21, hour, minute, tzinfo=datetime.UTC)


def test_hours_without_orders_are_counted() -> None:
    hours = orders_by_hour.count_by_hour([at(10, 5), at(13, 59), at(10, 59)])
    assert [(hour.hour, count) for hour, count in hours.items()] == [
        (10, 2),
        (11, 0),
        (12, 0),
        (13, 1),
    ]
    assert orders_by_hour.count_by_hour([]) == {}


def test_bars_are_as_high_as_their_counts() -> None:
    drawn = orders_by_hour.picture({at(0, 0): 40, at(1, 0): 0, at(2, 0): 10}, "50 orders <&>")
    bars = ElementTree.fromstring(drawn).findall(f"{SVG}rect[@class='bar']")
    heights = [float(bar.get("height", "")) for bar in bars]
    assert heights[0] == 4 * heights[2] > 0
    assert heights[1] == 0
    assert drawn.count("40</text>") == 1
    assert ElementTree.fromstring(orders_by_hour.picture({}, "no orders")).tag == f"{SVG}svg"


def test_picture_that_is_checked_in_is_one_of_the_script() -> None:
    drawn = ElementTree.parse(ROOT / "docs" / "orders-by-hour.svg").getroot()
    bars = drawn.findall(f"{SVG}rect[@class='bar']")
    counts = [int((bar.findtext(f"{SVG}title") or "").split()[3].replace(",", "")) for bar in bars]
    title = drawn.findtext(f"{SVG}title") or ""
    assert title == f"{sum(counts):,} orders by hour (UTC)"
    assert len(counts) > 40

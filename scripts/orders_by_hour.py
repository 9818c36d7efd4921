#!/usr/bin/env python3
"""A picture of a pipeline's orders in each hour, read from the Iceberg table without Spark.

`orders_by_hour.py lake/shop/orders docs/orders-by-hour.svg` reads the table with PyIceberg
(`pip install 'pyiceberg[pyarrow]'`) and draws it as text.
"""

from __future__ import annotations

import argparse
import datetime
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 960, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 56, 44
STEPS = (1, 2, 5)
HOUR = datetime.timedelta(hours=1)
STYLE = (
    "text{font:12px sans-serif;fill:#57606a}.title{font-size:16px;font-weight:600;fill:#24292f}"
    "rect.bar{fill:#2f6f9f}line{stroke:#d0d7de}"
)


def count_by_hour(times: Iterable[datetime.datetime]) -> dict[datetime.datetime, int]:
    """Return the number of orders in each hour from the first to the last one, in UTC."""
    counts = Counter(
        time.astimezone(datetime.UTC).replace(minute=0, second=0, microsecond=0) for time in times
    )
    if not counts:
        return {}
    hours: dict[datetime.datetime, int] = {}
    hour = min(counts)
    while hour <= max(counts):
        hours[hour] = counts[hour]
        hour += HOUR
    return hours


def scale_of(highest: int) -> int:
    """Return a round distance of three to six lines up to a number."""
    factor = 1
    while True:
        for step in STEPS:
            if step * factor * 6 >= highest:
                return step * factor
        factor *= 10


def picture(hours: Mapping[datetime.datetime, int], title: str) -> str:
    """Return the bars of orders by hour as SVG."""
    highest = max(hours.values(), default=1)
    step = scale_of(highest)
    top_count = -(-highest // step) * step
    plot_width, plot_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    bar_width = plot_width / max(1, len(hours))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text class="title" x="{LEFT}" y="28">{escape(title)}</text>',
    ]
    for count in range(0, top_count + 1, step):
        y = TOP + plot_height * (1 - count / top_count)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{count:,}</text>')
    for number, (hour, count) in enumerate(hours.items()):
        x, height = LEFT + number * bar_width, plot_height * count / top_count
        parts.append(
            f'<rect class="bar" x="{x + 0.5:.1f}" y="{TOP + plot_height - height:.1f}" '
            f'width="{max(0.5, bar_width - 1):.1f}" height="{height:.1f}">'
            f"<title>{hour:%Y-%m-%d %H}:00 UTC: {count:,} orders</title></rect>"
        )
        if hour.hour % 6 == 0:
            label = f"{hour:%d %b}" if hour.hour == 0 else f"{hour:%H}:00"
            parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}">{label}</text>')
    return "\n".join([*parts, "</svg>", ""])


def times_of(folder: str) -> list[datetime.datetime]:
    """Return the times of the orders in an Iceberg table, read without Spark."""
    from pyiceberg.table import StaticTable

    table = StaticTable.from_metadata(str(Path(folder).resolve()))
    rows = table.scan(selected_fields=("ordered_at",)).to_arrow()
    return [time for time in rows.column("ordered_at").to_pylist() if time is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw orders by hour from an Iceberg table.")
    parser.add_argument("table", help="the folder of the table, such as lake/shop/orders")
    parser.add_argument("picture", help="the SVG file to write")
    options = parser.parse_args()
    hours = count_by_hour(times_of(options.table))
    title = f"{sum(hours.values()):,} orders by hour (UTC)"
    Path(options.picture).write_text(picture(hours, title), encoding="utf-8")
    print(f"{title}: {options.picture}")


if __name__ == "__main__":
    main()

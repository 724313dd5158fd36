"""The frontier as a picture: accuracy against the encoded bytes a client uploads, one SVG that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from fedbiad.compare import percent
from fedbiad.tables import NAMES

Result = dict[str, Any]
Point = tuple[float, float, float]
"""Share of FedAvg's bytes, accuracy in per cent and its spread."""

WIDTH, HEIGHT = 980, 470
LEFT, RIGHT, TOP, BOTTOM = 62, 340, 46, 56
COLOURS = {"FedAvg": "#0b6e99", "FedDrop": "#b35c00", "FedBIAD": "#7a3e9d"}
OTHERS = "#555555"
LABEL_GAP = 13.0
"""Least distance between two labels, in pixels."""
BEST = 6.0
"""Points of accuracy below the best that the picture shows; what lies deeper stands on the floor, with an arrow."""


def picture_name(result: Result) -> str:
    """The file the picture of a result goes to, beside the page."""
    return f"{result['table']}-{result['data']}.svg"


def encoded(row: Result) -> float:
    """Bytes of a client's message."""
    size: float = row["upload_per_client"]["encoded"]
    return size


def frontier_picture(result: Result) -> str:
    """Methods with evidence coding as lines over their budgets, everything else as single points."""
    whole = encoded(result["rows"][0])
    points = {row["label"]: _point(row, whole) for row in result["rows"]}
    lines: dict[str, list[Point]] = {}
    for label, point in points.items():
        if ", evidence" in label:
            lines.setdefault(label.partition(", evidence")[0], []).append(point)
    single = {label: point for label, point in points.items() if ", evidence" not in label}
    axes = _Axes([*points.values()])
    drawn = [axes.frame(result)]
    drawn += [_line(axes, name, sorted(own)) for name, own in lines.items()]
    drawn += [_dot(axes, _colour(label), point) for label, point in single.items()]
    ends = {f"{name} + evidence": (min(own), _colour(name)) for name, own in lines.items()}
    drawn.append(_labels(axes, {**{name: (at, _colour(name)) for name, at in single.items()}, **ends}))
    title = f"Accuracy against encoded upload, {NAMES[result['data']]}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="12">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>' + "".join(drawn) + "</svg>\n"
    )


def _colour(name: str) -> str:
    return COLOURS.get(name.partition(",")[0], OTHERS)


def _point(row: Result, whole: float) -> Point:
    return encoded(row) / whole, 100 * row["accuracy_last_five"], 100 * (row["accuracy_last_five_std"] or 0.0)


class _Axes:
    """Shares on a logarithmic axis, accuracies on a plain one."""

    def __init__(self, points: Sequence[Point]) -> None:
        best = max(accuracy for _, accuracy, _ in points)
        self.low = max(best - BEST, math.floor(min(accuracy - spread for _, accuracy, spread in points)))
        self.high = math.ceil(best + 0.3)
        self.least = 10 ** math.floor(math.log10(min(share for share, _, _ in points)))

    def x(self, share: float) -> float:
        """Pixels from the left."""
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(share / self.least) / math.log(2 / self.least)

    def y(self, accuracy: float) -> float:
        """Pixels from the top; never below the floor."""
        height = HEIGHT - TOP - BOTTOM
        return TOP + height * (self.high - max(accuracy, self.low)) / (self.high - self.low)

    def frame(self, result: Result) -> str:
        """Axes, their labels and the title."""
        counts = sorted({len(row.get("seeds", result["seeds"])) for row in result["rows"]})
        seeds = f"{' to '.join(map(str, counts[:1] + counts[1:][-1:]))} seed{'s' if counts[-1] > 1 else ''}"
        parts = [
            f'<text x="{LEFT}" y="24" font-size="14" font-weight="600">Test accuracy against encoded upload: '
            f"{escape(NAMES[result['data']])}, {result['plan']['rounds']} rounds, {seeds}</text>"
        ]
        decade = self.least
        while decade <= 1.0:
            x = self.x(decade)
            parts.append(
                f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#e3e3e3"/>'
                f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{100 * decade:g} %</text>'
            )
            decade *= 10
        for accuracy in range(math.ceil(self.low), self.high + 1):
            y = self.y(accuracy)
            parts.append(
                f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e3e3e3"/>'
                f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{accuracy}</text>'
            )
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(
            f'<text x="{middle:.0f}" y="{HEIGHT - 14}" text-anchor="middle">upload of a client and round, share of '
            "FedAvg's encoded bytes (logarithmic)</text>"
            f'<text transform="translate(18 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" text-anchor="middle">'
            "accuracy, mean of the last five rounds, %</text>"
        )
        return "".join(parts)


def _dot(axes: _Axes, colour: str, point: Point) -> str:
    share, accuracy, spread = point
    x, y = axes.x(share), axes.y(accuracy)
    if accuracy < axes.low:
        return f'<path d="M {x - 5:.1f} {y - 9:.1f} l 10 0 l -5 9 z" fill="{colour}"/>'
    bar = f'<line x1="{x:.1f}" y1="{axes.y(accuracy - spread):.1f}" x2="{x:.1f}" y2="{axes.y(accuracy + spread):.1f}" '
    return f'{bar}stroke="{colour}"/><circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'


def _line(axes: _Axes, name: str, points: Sequence[Point]) -> str:
    colour = _colour(name)
    path = " ".join(f"{axes.x(share):.1f},{axes.y(accuracy):.1f}" for share, accuracy, _ in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>' + "".join(
        _dot(axes, colour, point) for point in points
    )


def _labels(axes: _Axes, named: dict[str, tuple[Point, str]]) -> str:
    """Names in a column on the right, in the order of accuracy, each tied to its point."""
    order = sorted(named, key=lambda name: -named[name][0][1])
    height, places = TOP + 4.0, []
    for name in order:
        height = max(height, axes.y(named[name][0][1]) + 4.0)
        places.append(height)
        height += LABEL_GAP
    over = max(0.0, (places[-1] if places else 0.0) - (HEIGHT - BOTTOM + 4.0))
    x, parts = WIDTH - RIGHT + 26, []
    for i, name in enumerate(order):
        (share, accuracy, _), colour = named[name]
        y = min(places[i], HEIGHT - BOTTOM + 4.0 - LABEL_GAP * (len(order) - 1 - i)) if over else places[i]
        below = f" ({accuracy:.0f} %)" if accuracy < axes.low else ""
        parts.append(
            f'<line x1="{axes.x(share) + 5:.1f}" y1="{axes.y(accuracy):.1f}" x2="{x - 4}" y2="{y - 4:.1f}" '
            f'stroke="{colour}" stroke-width="0.6" stroke-dasharray="2 3"/>'
            f'<text x="{x}" y="{y:.1f}" fill="{colour}">{escape(name)}{below}, {percent(share)}</text>'
        )
    return "".join(parts)

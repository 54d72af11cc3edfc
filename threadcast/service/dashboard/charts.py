"""Line charts: as SVG for pages without scripts, and as JSON for the script that zooms them.

Colours are classes: attributes `style` are forbidden by the pages' content security policy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from markupsafe import Markup

from threadcast.core.figures import significant
from threadcast.service.dashboard.frame import duration

WIDTH, HEIGHT = 760.0, 360.0
LEFT, RIGHT, TOP, BOTTOM = 72.0, 16.0, 14.0, 42.0
TONES = 10
"""Number of colours in the style sheet, `--c0` to `--c9`."""

Unit = Literal["s", "x", "%"]
Values = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One value for each position of the chart, None where there is none; `low` and `high` draw a band around the line.

    `tone` is the number of the line's colour. `marks` draws points in place of a line: "dots", or larger ones with
    "ring".
    """

    name: str
    values: Values
    tone: int
    low: Values = ()
    high: Values = ()
    marks: Literal["", "dots", "ring"] = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over ascending positions `x`; with `time` these are seconds since 1970.

    `within` are the lowest and highest value to show; None shows all values. It is for lines that would otherwise
    compress the others.
    """

    title: str
    x: tuple[float, ...]
    lines: tuple[Line, ...]
    x_label: str
    y_label: str
    unit: Unit
    x_log: bool = False
    y_log: bool = False
    time: bool = False
    within: tuple[float, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the chart as a JSON object, from which the script draws it."""
        lines = [
            {
                "name": line.name, "values": line.values, "tone": line.tone % TONES, "low": line.low, "high": line.high,
                "marks": line.marks,
            }
            for line in self.lines
        ]  # fmt: skip
        return {
            "title": self.title, "x": self.x, "lines": lines, "xLabel": self.x_label, "yLabel": self.y_label,
            "unit": self.unit, "xLog": self.x_log, "yLog": self.y_log, "time": self.time,
            "within": self.within,
        }  # fmt: skip

    def svg(self) -> Markup:
        """Return the chart as an SVG image; empty where there is nothing to draw."""
        found = [v for line in self.lines for v in (*line.values, *line.low, *line.high) if v is not None]
        if not found or not self.x:
            return Markup()
        x = _Axis(self.x[0], self.x[-1], LEFT, WIDTH - RIGHT, log=self.x_log, padded=not self.time)
        lowest, highest = self.within or (min(found), max(found))
        y = _Axis(
            lowest if self.y_log else min(0.0, lowest), highest, HEIGHT - BOTTOM, TOP, log=self.y_log, padded=True
        )
        parts = [*self._frame(x, y), *(part for line in self.lines for part in _drawn(line, self.x, x, y, self.unit))]
        return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
            f"{WIDTH:g}", f"{HEIGHT:g}", self.title, Markup("").join(parts)
        )

    def _frame(self, x: _Axis, y: _Axis) -> Iterator[Markup]:
        for value in y.ticks():
            at = y(value)
            yield Markup('<line class="grid" x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}"/>').format(
                LEFT, WIDTH - RIGHT, at
            )
            yield Markup('<text class="tick end" x="{}" y="{:.1f}">{}</text>').format(
                LEFT - 8, at + 4, shown(value, self.unit)
            )
        for value in self._x_ticks(x):
            yield Markup('<text class="tick middle" x="{:.1f}" y="{}">{}</text>').format(
                x(value), HEIGHT - BOTTOM + 18, day(value) if self.time else significant(value, 3)
            )
        yield Markup('<text class="label middle" x="{}" y="{}">{}</text>').format(
            (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, self.x_label
        )

    def _x_ticks(self, x: _Axis) -> list[float]:
        if self.time:
            return [self.x[0], self.x[-1]] if len(self.x) > 1 else [self.x[0]]
        return x.ticks(base=2.0) if self.x_log else [v for v in x.ticks() if v == int(v) and v >= self.x[0]]


def shown(value: float, unit: Unit) -> str:
    """A value of an axis as text with its unit."""
    if unit == "s":
        return duration(value) if value else "0"
    return f"{significant(value)}{'x' if unit == 'x' else ' %'}"


def day(seconds: float) -> str:
    """Seconds since 1970 as text: date and time, UTC."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def wants_log(values: Sequence[float]) -> bool:
    """Whether a logarithmic axis suits the values: all are above 0 and the largest is at least 8 times the smallest."""
    return bool(values) and min(values) > 0 and max(values) >= 8 * min(values)


class _Axis:
    """Maps values to positions in the image; values beyond its ends are drawn at its edge."""

    def __init__(self, low: float, high: float, start: float, end: float, *, log: bool, padded: bool) -> None:
        self._log = log
        a, b = self._scaled(low), self._scaled(high)
        room = 0.04 * (b - a) if b > a else 0.5 if log else abs(a) or 1.0
        self._start, self._end = start, end
        self.low, self.high = low, high
        self._a, self._b = (a - room, b + room) if padded or a == b else (a, b)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self._log else value

    def __call__(self, value: float) -> float:
        place = (self._scaled(value) - self._a) / (self._b - self._a)
        return self._start + min(max(place, 0.0), 1.0) * (self._end - self._start)

    def ticks(self, *, base: float = 10.0) -> list[float]:
        """About five round values within the axis."""
        if self._log:
            steps = (1.0,) if base == 2.0 else (1.0, 2.0, 5.0)
            exponents = range(math.floor(math.log(self.low, base)) - 1, math.ceil(math.log(self.high, base)) + 1)
            every = (s * base**e for e in exponents for s in steps)
            found = [value for value in every if self.low / 1.001 <= value <= self.high * 1.001]
            powers = [v for v in found if steps == (1.0,) or math.isclose(math.log10(v), round(math.log10(v)))]
            return powers if len(powers) >= 3 else found or [self.low, self.high]
        span = self.high - self.low or abs(self.high) or 1.0
        rough = span / 5
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(s * unit for s in (1, 2, 5, 10) if s * unit >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _drawn(line: Line, xs: Sequence[float], x: _Axis, y: _Axis, unit: Unit) -> Iterator[Markup]:
    tone = f"tone-{line.tone % TONES}"
    placed = [(x(at), value, i) for i, (at, value) in enumerate(zip(xs, line.values)) if value is not None]
    if line.low and line.high:
        upper = [f"{at:.1f},{y(v):.1f}" for at, _, i in placed if (v := line.high[i]) is not None]
        lower = [f"{at:.1f},{y(v):.1f}" for at, _, i in reversed(placed) if (v := line.low[i]) is not None]
        yield Markup('<polygon class="band {}" points="{}"/>').format(tone, " ".join([*upper, *lower]))
    if not line.marks:
        points = " ".join(f"{at:.1f},{y(value):.1f}" for at, value, _ in placed)
        yield Markup('<polyline class="line {}" points="{}"/>').format(tone, points)
    for at, value, i in placed if line.marks else ():
        yield Markup('<circle class="{} {}" cx="{:.1f}" cy="{:.1f}" r="{}"><title>{}</title></circle>').format(
            line.marks, tone, at, y(value), 8 if line.marks == "ring" else 4,
            f"{line.name}: {shown(value, unit)} at {xs[i]:g}",
        )  # fmt: skip

"""Line charts as JSON, which the script draws by uPlot; what they show is in the tables of their pages, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
    """Lines over ascending positions `x`.

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
            "unit": self.unit, "xLog": self.x_log, "yLog": self.y_log,
            "within": self.within,
        }  # fmt: skip


def wants_log(values: Sequence[float]) -> bool:
    """Whether a logarithmic axis suits the values: all are above 0 and the largest is at least 8 times the smallest."""
    return bool(values) and min(values) > 0 and max(values) >= 8 * min(values)

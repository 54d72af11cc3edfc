"""The scores of model versions, from the rows of `threadcast compare` in their manifests."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from threadcast.models.registry import Manifest


@dataclass(frozen=True, slots=True)
class Score:
    """The scores of a version on one split, as in `models.judgement.Row`; None where they are not known."""

    version: str
    split: str
    samples: float | None = None
    accuracy: float | None = None
    within_10: float | None = None
    coverage_90: float | None = None
    regret_mean: float | None = None
    regret_p95: float | None = None
    regret_all_threads: float | None = None
    noise_floor: float | None = None
    ops: float | None = None
    unusable: float | None = None
    predict_us: float | None = None
    fit_s: float | None = None

    @property
    def name(self) -> str:
        """The name of the version's kind of model."""
        return self.version.partition("@")[0]


_FIGURES = [field.name for field in fields(Score) if field.name not in ("version", "split")]


def scores_of(manifest: Manifest) -> list[Score]:
    """Return a score for each split on which the version was evaluated."""
    return [
        Score(manifest.version, split, **{name: _number(row.get(name)) for name in _FIGURES})
        for split, row in manifest.metrics.items()
        if isinstance(row, dict)
    ]


def score_of(manifest: Manifest) -> Score | None:
    """Return the first score of a version, if it has one."""
    return next(iter(scores_of(manifest)), None)


def newest(versions: list[str]) -> dict[str, str]:
    """The newest version of each kind of model."""
    return {version.partition("@")[0]: version for version in versions}  # sorted by number: the last one stays


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

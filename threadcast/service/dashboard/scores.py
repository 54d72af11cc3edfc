"""The scores of model versions, from the rows of `threadcast compare` in their manifests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from threadcast.models.registry import Manifest


@dataclass(frozen=True, slots=True)
class Score:
    """The scores of a version on a split, as in `models.judgement.Row`; None where they are not known."""

    split: str
    accuracy: float | None
    regret_mean: float | None


def score_of(manifest: Manifest) -> Score | None:
    """Return the score of a version on the first split on which it was judged, if there is one."""
    rows = ((split, row) for split, row in manifest.metrics.items() if isinstance(row, dict))
    split, row = next(rows, ("", {}))
    return Score(split, _number(row.get("accuracy")), _number(row.get("regret_mean"))) if split else None


def newest(versions: list[str]) -> dict[str, str]:
    """The newest version of each kind of model."""
    return {version.partition("@")[0]: version for version in versions}  # sorted by number: the last one stays


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

"""One small fitted model of every way in which models are stored, as files."""

from __future__ import annotations

from functools import cache
from typing import Any

KINDS: dict[str, dict[str, Any]] = {
    "roofline": {}, "hill_climb": {}, "ols": {"samples": 1}, "svr_rbf": {"samples": 1}, "mlp_adam": {"samples": 1},
    "k_neighbors": {"samples": 1}, "random_forest": {"samples": 1}, "xgboost": {"samples": 1},
    "learned_curve": {"trees": 5}, "joint_process": {}, "static_xgboost": {"trees": 5},
}  # fmt: skip
"""By kind the options that keep it small."""


@cache
def stored(kind: str) -> dict[str, bytes]:
    """The files of a model of this kind, fitted to synthetic ops on two cores."""
    from tests.models.synthetic_ops import make_ops, measure_all
    from threadcast.core import Machine
    from threadcast.models.registry_of_kinds import create

    measurements = measure_all(make_ops(8), machine=Machine.uniform("two", 2))
    return create(kind, **KINDS[kind]).fit(measurements).to_files()

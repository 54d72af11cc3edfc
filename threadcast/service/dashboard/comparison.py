"""The page that compares models, from the rows of `threadcast compare` that are stored in versions' manifests."""

from __future__ import annotations

from flask import render_template, request

from threadcast.service.context import context
from threadcast.service.dashboard.charts import Chart, Line
from threadcast.service.dashboard.frame import blueprint
from threadcast.service.dashboard.scores import Score, newest, scores_of

SORTS = {"regret": "regret_mean", "accuracy": "accuracy", "samples": "samples", "name": "version"}
FALLING = ("accuracy",)
"""Columns in which higher values are better."""


@blueprint.get("/comparison")
def comparison() -> str:
    """The scores of each model, by split."""
    models = context().models
    manifests, _ = models.registry.manifests()
    aliases = models.registry.aliases()
    every = request.args.get("versions") == "all"
    shown = {m.version for m in manifests} if every else set(newest([m.version for m in manifests]).values())
    shown |= set(aliases.values())
    by_split: dict[str, list[Score]] = {}
    for manifest in manifests:
        for score in scores_of(manifest) if manifest.version in shown else ():
            by_split.setdefault(score.split, []).append(score)
    sort = request.args.get("sort", "")
    sort = sort if sort in SORTS else "regret"
    splits = {split: sorted(scores, key=lambda s: _place(s, sort)) for split, scores in sorted(by_split.items())}
    called: dict[str, list[str]] = {}
    for alias, version in aliases.items():
        called.setdefault(version, []).append(alias)
    return render_template(
        "dashboard/comparison.html", splits=splits, sort=sort, sorts=SORTS, every=every, called=called,
        worst={split: max((s.regret_mean or 0.0 for s in scores), default=0.0) for split, scores in splits.items()},
        charts={split: _chart(split, scores) for split, scores in splits.items()},
    )  # fmt: skip


def _place(score: Score, sort: str) -> tuple[bool, float, float, str]:
    """Return the sort key of a score: unknown values last, and by regret also models that cannot predict all ops."""
    if sort == "name":
        return False, 0.0, 0.0, score.version
    value = getattr(score, SORTS[sort])
    lost = score.unusable or 0.0 if sort == "regret" else 0.0  # predicting half of the ops is easier
    return value is None, lost, (-1 if sort in FALLING else 1) * (value or 0.0), score.version


def _chart(split: str, scores: list[Score]) -> Chart | None:
    """Return the chart of accuracy by samples, one point for each model; None for fewer than two models."""
    known = [s for s in scores if s.accuracy is not None and s.samples is not None]
    if len(known) < 2:
        return None
    x = sorted({float(s.samples or 0.0) for s in known})
    lines = [
        Line(s.version, tuple(_shown_accuracy(s) if v == s.samples else None for v in x), i, marks="dots")
        for i, s in enumerate(known)
    ]
    return Chart(f"accuracy by samples, {split}", tuple(x), tuple(lines), "samples of an op", "accuracy", "%")


def _shown_accuracy(score: Score) -> float:
    """Return the accuracy in percent, at least 0: lower ones would compress the axis."""
    return max(100 * (score.accuracy or 0.0), 0.0)

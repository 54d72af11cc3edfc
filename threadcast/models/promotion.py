"""Retrains the model of an alias, and moves the alias to the candidate only where that is better.

It is better where it is on ops that it has not learned from (`retraining`), and is not worse on the golden set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from threadcast.models.golden_set import GoldenSet, golden_rows, lowered, read_golden_set, write_golden_set
from threadcast.models.measured import MeasuredOp
from threadcast.models.registry import ModelRegistry
from threadcast.models.retraining import Verdict, compete, held_out


@dataclass(frozen=True, slots=True)
class Promotion:
    """What became of a retraining: the version that the alias had `before`, the one that it has `now`, and `why`."""

    before: str
    now: str
    why: str
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        """Versions, reason and the scores of both models on the held-out ops as a JSON object."""
        return {
            "before": self.before, "now": self.now, "promoted": self.now != self.before, "why": self.why,
            **self.verdict.to_json(),
        }  # fmt: skip


def promote_if_better(
    registry: ModelRegistry, alias: str, entries: Sequence[MeasuredOp], *, steps: int, by: str
) -> Promotion:
    """Fit a copy of the alias's model to what was measured, and move the alias to it where it is better.

    `entries` is what holds now of each op. A candidate that is better is registered. `steps` is how often a user runs
    each op, over which measuring must pay off; `by` says who moves the alias. ModelError where there is too little to
    learn from or to judge by.
    """
    version = registry.resolve(alias)
    champion = registry.load(version)
    verdict = compete(champion, entries, steps=steps)
    worse = lowered(golden_rows(champion, verdict.candidate, _golden(registry, alias, entries)))
    if not verdict.better:
        return Promotion(version, version, "the candidate is no better on held-out ops", verdict)
    if worse:
        parts = ", ".join(name or "the whole" for name in worse)
        return Promotion(version, version, f"the candidate is worse on the golden set: {parts}", verdict)
    origin = {
        "machines": sorted({entry.machine.fingerprint for entry in entries}), "ops": verdict.learned_ops,
        "measurements": sum(len(entry.by_case) for entry in entries), "networks": [], "retrained_from": version,
    }  # fmt: skip
    better = registry.save(verdict.candidate, trained_on=origin, metrics={"held out": verdict.candidate_row.to_json()})
    if (now := registry.resolve(alias)) != version:
        return Promotion(version, now, f"{alias} was moved meanwhile; it stays without {better}", verdict)
    registry.set_alias(alias, better, by=by)
    return Promotion(version, better, "the candidate is better", verdict)


def _golden(registry: ModelRegistry, alias: str, entries: Sequence[MeasuredOp]) -> GoldenSet:
    """The set to compare by: what was in it before this run, with the times that hold now. It takes in new ops."""
    path = registry.root / "golden" / f"{alias}.json"
    before, judging = read_golden_set(path), held_out(entries)
    taken_in = before.renewed(judging)
    write_golden_set(path, taken_in)
    known = before.renewed(judging, take_in=False) if before.entries else taken_in
    return known.without_stale(entries)

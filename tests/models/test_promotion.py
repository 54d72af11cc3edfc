"""An alias moves only to a candidate that is better, and not worse on the golden set."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.models.synthetic_ops import make_ops, measure_all
from tests.models.test_retraining import slower
from threadcast.core import Machine, Measurement
from threadcast.models import promotion
from threadcast.models.golden_set import GoldenSet, read_golden_set
from threadcast.models.learned_curve import LearnedCurve
from threadcast.models.measured import group
from threadcast.models.promotion import Promotion
from threadcast.models.registry import ModelRegistry
from threadcast.models.retraining import Verdict, held_out
from threadcast.store.holding import all_that_holds


@pytest.fixture(scope="module")
def measured() -> list[Measurement]:
    return list(measure_all(make_ops(60)))


@pytest.fixture(scope="module")
def fitted(measured: list[Measurement]) -> LearnedCurve:
    return LearnedCurve(trees=20, samples=0).fit(measured)


@pytest.fixture
def registry(tmp_path: Path, fitted: LearnedCurve) -> ModelRegistry:
    """A registry whose champion learned from `measured`."""
    made = ModelRegistry(tmp_path / "models")
    made.set_alias("champion", made.save(fitted, trained_on={}, metrics={}), by="user a")
    return made


def promote(registry: ModelRegistry, measured: list[Measurement]) -> Promotion:
    return promotion.promote_if_better(registry, "champion", group(all_that_holds(measured)), steps=10_000, by="user b")


def test_the_alias_moves_to_a_better_candidate(registry: ModelRegistry, measured: list[Measurement]) -> None:
    found = promote(registry, [*measured, *slower(measured, 2.0)])
    assert (found.before, found.now) == ("learned_curve@1", "learned_curve@2")
    assert found.to_json()["promoted"] is True
    assert [(move.version, move.by) for move in registry.history("champion")] == [
        ("learned_curve@1", "user a"), ("learned_curve@2", "user b")
    ]  # fmt: skip
    manifest = registry.manifest("champion")
    assert manifest.trained_on["retrained_from"] == "learned_curve@1"
    assert manifest.metrics["held out"]["accuracy"] > 0.5


def test_a_candidate_that_is_no_better_is_not_registered(registry: ModelRegistry, measured: list[Measurement]) -> None:
    found = promote(registry, measured)
    assert (found.now, "no better" in found.why) == ("learned_curve@1", True)
    assert registry.versions() == ["learned_curve@1"]


def test_an_alias_that_was_moved_meanwhile_stays_there(
    registry: ModelRegistry, measured: list[Measurement], fitted: LearnedCurve, monkeypatch: pytest.MonkeyPatch
) -> None:
    compete = promotion.compete

    def and_move(*given: object, **options: object) -> Verdict:
        registry.set_alias("champion", registry.save(fitted, trained_on={}, metrics={}), by="user c")
        return compete(*given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(promotion, "compete", and_move)
    found = promote(registry, [*measured, *slower(measured, 2.0)])
    assert (found.now, registry.resolve("champion")) == ("learned_curve@2", "learned_curve@2")
    assert "moved meanwhile" in found.why


def on(machine: str, measured: list[Measurement]) -> list[Measurement]:
    """The same measurements on another machine of this name."""
    return [replace(m, machine=Machine(machine, m.machine.cores, m.machine.caches)) for m in measured]


def test_what_forgets_a_machine_of_the_golden_set_is_not_promoted(
    registry: ModelRegistry, measured: list[Measurement]
) -> None:
    """The second retraining is given nothing of the first machine any more, as after a retention."""
    assert promote(registry, [*measured, *slower(measured, 2.0)]).now == "learned_curve@2"
    golden = read_golden_set(registry.root / "golden" / "champion.json")
    assert len(golden.entries) >= 4
    assert {entry.op.key for entry in golden.entries} <= {entry.op.key for entry in held_out(group(measured))}
    found = promote(registry, [*slower(measured, 2.0)[:1], *slower(on("fast", measured), 0.01)])
    assert "worse on the golden set" in found.why
    assert registry.resolve("champion") == "learned_curve@2"
    kept = read_golden_set(registry.root / "golden" / "champion.json")
    assert {entry.machine.name for entry in kept.entries} == {measured[0].machine.name, "fast"}


def test_a_golden_set_keeps_its_ops_takes_newer_times_and_is_bounded(
    measured: list[Measurement], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = group(measured)
    golden = GoldenSet().renewed(entries[:3])
    assert GoldenSet.from_json(json.loads(json.dumps(golden.to_json()))) == golden
    slow = group(slower(measured, 3.0))
    newer = golden.renewed([replace(slow[1], by_case=dict(list(slow[1].by_case.items())[:1]))])
    assert [entry.op for entry in newer.entries] == [entry.op for entry in golden.entries]
    factors = [new.seconds / old.seconds for new, old in zip(
        newer.entries[1].by_case.values(), golden.entries[1].by_case.values(), strict=True)]  # fmt: skip
    assert factors == pytest.approx([3.0, *[1.0] * (len(factors) - 1)])
    monkeypatch.setattr("threadcast.models.golden_set.MOST_OPS", 4)
    assert [entry.op for entry in golden.renewed(entries).entries] == [entry.op for entry in entries[:4]]

"""What is saved on one machine is there after loading on another of the same kind, and nothing else is."""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import threadcast
from tests.runtime.bundles.bundled_machine import add, files_below, fill, in_step, measurements, move_to
from tests.runtime.random_plans import make_random_plan
from threadcast.core import Machine
from threadcast.core.errors import BundleError, StoreError
from threadcast.core.settings import Settings
from threadcast.runtime.bundles.archive import read_bundle
from threadcast.runtime.bundles.exchange import load, save
from threadcast.runtime.bundles.places import Places
from threadcast.runtime.plans.variant import MemoryFormat, Variant
from threadcast.runtime.tuner.candidate import VariantPlan


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle of a machine with everything."""
    places = move_to(tmp_path / "one", monkeypatch)
    fill(places)
    save(tmp_path / "bundle", places)
    return tmp_path / "bundle"


def test_everything_comes_back_in_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = move_to(tmp_path / "one", monkeypatch)
    measured = fill(one)
    saved = save(tmp_path / "bundle", one)
    other = move_to(tmp_path / "other", monkeypatch)
    loaded = load(tmp_path / "bundle", other, trust=True)
    expected = files_below(tmp_path / "one")
    del expected[f"cache/{one.native.name}/lock"]
    assert files_below(tmp_path / "other") == expected
    assert measurements(other) == measured
    assert (loaded.count("plan"), loaded.count("compiled"), loaded.measurements) == (5, 5, 2)
    assert loaded.bundle.sha256 == saved.sha256 == hashlib.sha256((tmp_path / "bundle").read_bytes()).hexdigest()


def test_what_the_store_has_from_elsewhere_is_not_added_again(
    tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = move_to(tmp_path / "one", monkeypatch)
    assert load(bundle, one).measurements == 0
    add(one, [in_step(one.machine, "tanh", 1.0)])
    save(tmp_path / "more", one)
    other = move_to(tmp_path / "other", monkeypatch)
    assert load(bundle, other).measurements == 2
    assert load(tmp_path / "more", other).measurements == 1
    assert len(measurements(other)) == 3


def test_without_trust_no_compiled_file_is_written(
    tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(bundle, move_to(tmp_path / "other", monkeypatch))
    assert not [name for name in files_below(tmp_path / "other") if not name.startswith("plans/")]
    assert len(loaded.untrusted) == 5
    assert not (tmp_path / "other" / "cache").exists()


def test_own_plans_stay_unless_they_are_to_be_replaced(
    tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = move_to(tmp_path / "other", monkeypatch)
    theirs = load(bundle, other).bundle.contents["plans/backends"]
    (other.plans / "backends").write_text("mine")
    assert load(bundle, other).written == []
    assert (other.plans / "backends").read_text() == "mine"
    load(bundle, other, replace=True)
    assert (other.plans / "backends").read_bytes() == theirs


def test_only_steps_on_this_machine_or_its_cores_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine.uniform("four", 4)
    places = replace(move_to(tmp_path / "one", monkeypatch), machine=machine)
    mine = [in_step(machine, "mm", 1.0), in_step(machine.limited_to([0, 1]), "mm", 2.0)]
    others = [in_step(Machine.uniform("two", 2), "mm", 3.0), in_step(machine, "mm", 4.0, cache="warm")]
    add(places, [*others, *mine])
    save(tmp_path / "bundle", places)
    other = replace(move_to(tmp_path / "other", monkeypatch), machine=machine)
    load(tmp_path / "bundle", other)
    assert measurements(other) == mine


def test_a_damaged_plan_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    places = move_to(tmp_path / "one", monkeypatch)
    fill(places)
    (path,) = places.plans.glob("*.json")
    path.write_text("{")
    save(tmp_path / "bundle", places)
    assert f"{path} is left out" in caplog.text
    assert not [
        name
        for name in read_bundle(tmp_path / "bundle").contents
        if name.startswith("plans/") and name.endswith(".json")
    ]


def test_where_there_is_nothing_the_old_bundle_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bundle").write_text("old")
    with pytest.raises(BundleError, match="nothing to save"):
        save(tmp_path / "bundle", move_to(tmp_path / "one", monkeypatch))
    assert (tmp_path / "bundle").read_text() == "old"


def test_a_store_that_cannot_be_written_leaves_everything_as_it_was(
    tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(move_to(tmp_path / "other", monkeypatch), store="sqlite:////dev/null/store.db")
    with pytest.raises((StoreError, OSError)):
        load(bundle, other, trust=True)
    assert files_below(tmp_path / "other") == {}


def test_without_feedback_there_are_no_measurements(
    tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = move_to(tmp_path / "other", monkeypatch, feedback="off")
    assert load(bundle, other).measurements == 0
    assert not (tmp_path / "other" / "store.db").exists()


def waves(x: Tensor) -> Tensor:
    return (x * 2).sin() + (x + 1).cos()


def test_the_first_step_after_loading_runs_the_stored_plan(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(8)
    with closing(threadcast.optimize(waves)) as call:
        call(x)
        (tuned,) = call._optimized._table.tunings
        captured = tuned.captured
        plan = make_random_plan(captured.graph, tuple(core.id for core in machine.cores), seed=2)
        variant_plan = VariantPlan(Variant(MemoryFormat.AS_GIVEN), captured, plan, captured.graph, None)
        tuned._stored.write(variant_plan, 1.0)
    save(tmp_path / "bundle", Places.of(Settings.read()), plans_only=True)
    monkeypatch.setenv("THREADCAST_ENGINE_PLANS", str(tmp_path / "other"))
    load(tmp_path / "bundle", Places.of(Settings.read()))
    with closing(threadcast.optimize(waves)) as call:
        assert torch.equal(call(x), waves(x))
        assert (call.reports[0].runs, call.reports[0].plan) == ("plan", plan)

"""Folders of a machine with plans, measurements and compiled files, to save and to load bundles in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.runtime.random_plans import make_random_plan
from threadcast.capture.graph.capture import capture_forward
from threadcast.core import Case, Machine, Measurement, Op, Sample
from threadcast.core.settings import Settings
from threadcast.runtime.backends.way_store import WayStore
from threadcast.runtime.bundles.places import Places
from threadcast.runtime.plans.backend_history import BackendHistory
from threadcast.runtime.plans.plan_store import FasterGraphs, PlanStore, StoredPlan
from threadcast.runtime.plans.variant import MemoryFormat
from threadcast.store import Store

NATIVE, FUSED = b"\x7fELF of the engine", b"\x7fELF of fused operators"


def move_to(folder: Path, monkeypatch: pytest.MonkeyPatch, *, feedback: str = "local") -> Places:
    """Let settings name places below `folder`, as on another machine of the same kind, and return them."""
    monkeypatch.setenv("THREADCAST_ENGINE_PLANS", str(folder / "plans"))
    monkeypatch.setenv("THREADCAST_ENGINE_CACHE", str(folder / "cache"))
    monkeypatch.setenv("THREADCAST_STORE", f"sqlite:///{folder / 'store.db'}")
    monkeypatch.setenv("THREADCAST_ENGINE_FEEDBACK", feedback)
    folder.mkdir(exist_ok=True)
    return Places.of(Settings.read())


def fill(places: Places) -> list[Measurement]:
    """Store a plan, a gain, what runs a program, a history of backends, one that was built, three compiled files, and
    measurements of two ops in steps; return these."""
    graph = capture_forward(lambda x: (x * 2).sin() + 1, torch.ones(8)).graph
    plan = make_random_plan(graph, (places.machine.cores[0].id,), seed=1)
    stored = StoredPlan(plan, MemoryFormat.AS_GIVEN, 1e-3)
    PlanStore(places.plans, places.machine).write("call", graph, stored)
    BackendHistory(places.plans / "backends").add("products", {"openvino": 0.5}, {"openvino": 1.5})
    PlanStore(places.plans, places.machine).note_backend(graph, 2.0, 0.01)
    PlanStore(places.plans, places.machine).note_program("a program", FasterGraphs(1e-3, 2e-3))
    built = places.plans.parent / "model.onnx"
    built.write_bytes(b"a model")
    WayStore(places.plans / "ways").write("0" * 32, {"file": str(built)}, "", [])
    built.unlink()
    for path, content in {
        places.native / "threadcast_native.so": NATIVE, places.fused / "fused_a.so": FUSED,
        places.fused / "fused_b.so": FUSED,
    }.items():  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (places.native / "lock").touch()
    measured = [in_step(places.machine, kind, 1e-3) for kind in ("mm", "relu")]
    add(places, measured)
    return measured


def in_step(machine: Machine, kind: str, seconds: float, **conditions: object) -> Measurement:
    """A measurement of an op on one core in steps, unless `conditions` say otherwise."""
    found = {"cache": "step", "torch": torch.__version__, "time": "2026-01-01T00:00:00Z", **conditions}
    return Measurement(Op(kind), machine, Case(1), (Sample(seconds), Sample(seconds * 2)), found)


def add(places: Places, measured: list[Measurement]) -> None:
    """Add measurements to the store of these places."""
    with Store.open(places.store) as store:
        store.add(measured)


def measurements(places: Places) -> list[Measurement]:
    """What the store of these places has."""
    with Store.open(places.store, create=False) as store:
        return store.measurements()


def files_below(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by their paths in it, without those of a store."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith("store.db")
    }

"""A later process opens what an earlier one has built for the same program and weights, and builds nothing."""

from __future__ import annotations

import os
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime.backends.programs import ARGUMENTS, Two
from tests.runtime.backends.searches import found_by, search_for
from threadcast.runtime.backends import way_store
from threadcast.runtime.backends.search import BackendSearch
from threadcast.runtime.backends.way_store import WayStore

pytestmark = pytest.mark.usefixtures("folder")
OPTIONS: dict[str, Any] = {"among": ["onnxruntime"], "close": 1e6}


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of plans of a process that has searched for a backend of `Two`."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("plans")
    assert len(found_by(search_for(Two().eval(), ARGUMENTS, history=folder / "backends", **OPTIONS))) == 1
    return folder


def later(module: Two, plans: Path, arguments: Any = ARGUMENTS) -> BackendSearch:
    """A search for the same module, as in a later process."""
    return search_for(module, arguments, history=plans / "backends", **OPTIONS)


def test_what_was_built_for_these_weights_is_opened_without_a_process(
    module: Two, plans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    (contender,) = found_by(search := later(module, plans))
    assert not search.left_out
    (args, kwargs) = ARGUMENTS
    torch.testing.assert_close(contender.run(args, kwargs), module(*args, **kwargs))
    with torch.no_grad():
        module.mix.weight.mul_(2)
    assert not contender.holds()


def test_other_weights_and_other_infinities_are_searched_for_anew(module: Two, plans: Path) -> None:
    args, kwargs = ARGUMENTS
    infinite = {"a": args[0]["a"].clone(), "b": torch.full((4, 8), torch.inf)}
    with closing(later(module, plans, ((infinite,), kwargs))) as search:
        search.start()
        assert search._process is not None
    with torch.no_grad():
        next(module.parameters()).view(-1)[0] += 1
    with closing(later(module, plans)) as search:
        search.start()
        assert search._process is not None


def test_a_way_that_cannot_be_opened_is_deleted(module: Two, plans: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "plans"
    subprocess.run(["cp", "-r", plans, damaged], check=True)
    (model,) = damaged.glob("ways/*/*.onnx")
    model.write_bytes(b"no model")
    assert not found_by(search := later(module, damaged))
    assert search.broken_off
    assert not list(damaged.glob("ways/*"))


def test_ways_that_were_not_used_for_longest_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, model = WayStore(tmp_path / "ways"), tmp_path / "model.onnx"
    model.write_bytes(bytes(1000))
    (tmp_path / "model.onnx.data").write_bytes(bytes(1000))
    monkeypatch.setattr(way_store, "MOST_BYTES", 5000)
    assert store.read("a") is None
    for key in ("a", "b"):
        store.write(key, {"file": str(model)}, weights=key)
    os.utime(tmp_path / "ways" / "a", (0, 0))
    assert store.read("a") is not None, "which is a use"
    os.utime(tmp_path / "ways" / "b", (0, 0))
    store.write("c", {"file": str(model)}, weights="c")
    assert store.read("b") is None
    found = store.read("a")
    assert found is not None
    assert found["weights"] == "a"
    assert Path(found["built"]["file"]).with_name("model.onnx.data").read_bytes() == bytes(1000)

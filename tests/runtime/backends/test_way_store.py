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
    (way,) = found_by(search := later(module, plans))
    assert not search.left_out
    (args, kwargs) = ARGUMENTS
    torch.testing.assert_close(way.run(args, kwargs), module(*args, **kwargs))
    with torch.no_grad():
        module.mix.weight.mul_(2)
    assert not way.holds()


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


@pytest.mark.parametrize("damage", ["other bytes", "fewer bytes", "no file"])
def test_a_way_whose_files_are_not_as_they_were_written_is_never_opened(
    damage: str, module: Two, plans: Path, tmp_path: Path
) -> None:
    """A shorter library would end the process as it is loaded, and other weights would give other numbers."""
    damaged = tmp_path / "plans"
    subprocess.run(["cp", "-r", plans, damaged], check=True)
    (model,) = damaged.glob("ways/*/*.onnx")
    content = model.read_bytes()
    if damage == "no file":
        model.unlink()
    else:
        model.write_bytes(content[:-1] + b"\0" if damage == "other bytes" else content[:-10])
    with closing(later(module, damaged)) as search:
        search.start()
        assert search._process is not None
    assert not list(damaged.glob("ways/*"))


def test_what_another_process_stores_for_other_weights_replaces_nothing(tmp_path: Path) -> None:
    store, model = WayStore(tmp_path / "ways"), tmp_path / "model.onnx"
    opened = {}
    for weights in ("a", "b", "a"):
        model.write_text(weights)
        store.write("0" * 32, {"file": str(model)}, weights, [])
        found = store.read("0" * 32, lambda one=weights: one, [])
        assert found is not None
        opened[weights] = found["file"]
    assert {weights: Path(file).read_text() for weights, file in opened.items()} == {"a": "a", "b": "b"}
    assert store.read("0" * 32, lambda: "a", [1]) is None


def test_ways_that_were_not_used_for_longest_are_deleted_and_drafts_of_processes_that_were_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, model = WayStore(tmp_path / "ways"), tmp_path / "model.onnx"
    model.write_bytes(bytes(1000))
    (tmp_path / "model.onnx.data").write_bytes(bytes(1000))
    monkeypatch.setattr(way_store, "MOST_BYTES", 5000)

    def read(key: str) -> dict[str, Any] | None:
        return store.read(key, lambda: key, [])

    assert read("a") is None
    for key in ("a", "b"):
        store.write(key, {"file": str(model)}, key, [])
    drafts = [tmp_path / "ways" / name for name in (".old", ".new")]
    for draft in drafts:
        draft.mkdir()
    os.utime(drafts[0], (0, 0))
    for key in ("a", "b"):
        os.utime(tmp_path / "ways" / way_store.name_of(key, key, []), (0, 0))
    assert read("a") is not None, "which is a use"
    store.write("c", {"file": str(model)}, "c", [])
    assert read("b") is None
    found = read("a")
    assert found is not None
    assert Path(found["file"]).with_name("model.onnx.data").read_bytes() == bytes(1000)
    assert [draft.is_dir() for draft in drafts] == [False, True]

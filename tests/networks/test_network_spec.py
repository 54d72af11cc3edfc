"""A user's own network, named by file or module."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from threadcast import networks
from threadcast.core.errors import InvalidInput, NetworkError, NotFound

HEAD = """
import torch
from torch import nn
from threadcast.networks import Workload
model, x, y = nn.Linear(3, 2), torch.zeros(4, 3), torch.zeros(4, 2)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "own.py"


def load_returning(own: Path, expression: str) -> networks.Workload:
    own.write_text(f"{HEAD}\ndef build():\n    return {expression}\n")
    return networks.load_spec(f"{own}:build")


def test_a_built_in_name_loads_its_size_tiny_by_default() -> None:
    assert networks.load_spec("lenet").size == "tiny"
    workload = networks.load_spec("lstm", size="small", batch=2, steps=3)
    assert (workload.size, workload.batch, workload.inputs[0].shape) == ("small", 2, (3, 2, 128))


@pytest.mark.parametrize("inputs", ["(x,)", "[x]", "x"])
def test_model_and_inputs_make_an_inference_workload(own: Path, inputs: str) -> None:
    workload = load_returning(own, f"(model, {inputs})")
    assert (workload.name, workload.size, workload.batch) == (f"{own}:build", "own", 4)
    assert workload.target is None
    assert workload.model(*workload.inputs).shape == (4, 2)


def test_model_inputs_target_and_loss_make_a_training_workload(own: Path) -> None:
    workload = load_returning(own, "(model, (x,), y, nn.functional.mse_loss)")
    assert workload.loss is not None
    assert workload.target is not None
    assert workload.loss(workload.model(*workload.inputs), workload.target).shape == ()


def test_a_workload_is_taken_as_it_is_and_a_callable_stands_for_a_model(own: Path) -> None:
    of_callable = load_returning(own, "(lambda x: x.relu() + 1, (x,))")
    assert torch.equal(of_callable.model(*of_callable.inputs), torch.ones(4, 3))
    assert not list(of_callable.model.parameters())
    workload = load_returning(own, "Workload('mine', 'big', 4, model, (x,))")
    assert (workload.name, workload.size) == ("mine", "big")


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("None", "returned None; return .model, inputs"),
        ("model", "returned a model without inputs; return .model, inputs"),
        ("(model,)", "returned a tuple of 1; return"),
        ("(model, (x,), y)", "returned a tuple of 3; return"),
        ("(nn.Linear, (x,))", "returned the class Linear; return an instance"),
        ("(3, (x,))", "model is 3; give a torch.nn.Module"),
        ("(model, ())", "inputs is a tuple; give a tuple of at least one torch.Tensor"),
        ("(model, (x, 'text'))", r"inputs\[1\] is 'text'; every input must be a torch.Tensor"),
        ("(model, {'x': x})", "inputs is a dict; give a tuple"),
        ("(model, (x,), 1, print)", "target is 1; give a torch.Tensor"),
        ("(model, (x,), y, 'mse')", "loss is 'mse'; give a callable"),
        ("(model, (x,), y, None)", "target and loss belong together"),
    ],
)
def test_any_other_form_is_named_with_what_is_allowed(own: Path, expression: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        load_returning(own, expression)
    assert f"{own}:build" in str(caught.value)


def test_missing_file_module_and_function_are_not_found(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFound, match=r"no file 'absent.py' in .*give the path of a Python file"):
        networks.load_spec("absent.py:build")
    with pytest.raises(NotFound, match=r"no module 'absent.part' .*absent/part.py:function"):
        networks.load_spec("absent.part:build")
    own.write_text("def build(): ...\ndef _hidden(): ...\n")
    with pytest.raises(NotFound, match=r"no 'biuld'; did you mean 'build'\? functions there: build$"):
        networks.load_spec("own.py:biuld")
    with pytest.raises(NotFound, match="no network named 'own'"):
        networks.load_spec("own")


def test_a_file_without_a_function_is_told_its_functions(own: Path) -> None:
    own.write_text("def build(): ...\ndef other(): ...\ndef _hidden(): ...\n")
    with pytest.raises(InvalidInput, match=r"add it, as .*own\.py:FUNCTION; functions there: build, other$"):
        networks.load_spec(str(own))
    with pytest.raises(NotFound, match=r"no file 'absent\.py'"):
        networks.load_spec("absent.py")


@pytest.mark.parametrize("spec", [":build", "own.py:"])
def test_a_spec_without_file_or_function_says_how_to_write_one(spec: str) -> None:
    with pytest.raises(InvalidInput, match=r"file\.py:function"):
        networks.load_spec(spec)


def test_a_folder_or_another_kind_of_file_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("hello")
    with pytest.raises(InvalidInput, match=r"must end in \.py"):
        networks.load_spec(f"{tmp_path / 'text.txt'}:build")
    with pytest.raises(NotFound, match="no file"):
        networks.load_spec(f"{tmp_path}/:build")


@pytest.mark.parametrize("code", ["import absent_dependency", "1 / 0", "def (", "raise SystemExit(3)"])
def test_a_file_that_cannot_be_imported_says_why_and_leaves_nothing_behind(own: Path, code: str) -> None:
    own.write_text(code)
    path, modules = list(sys.path), set(sys.modules)
    with pytest.raises(NetworkError, match=r"own\.py cannot be imported: \w+: ") as caught:
        networks.load_spec(f"{own}:build")
    assert caught.value.__cause__ is not None
    assert sys.path == path
    assert set(sys.modules) == modules


def test_a_network_that_cannot_be_built_is_an_error_of_one_line_with_its_cause(own: Path) -> None:
    own.write_text("def build():\n    raise KeyError('weights')\n")
    with pytest.raises(NetworkError, match=r"own\.py:build raised KeyError: 'weights'") as raised:
        networks.load_spec(f"{own}:build")
    assert isinstance(raised.value.__cause__, KeyError)
    with pytest.raises(NetworkError, match="lenet cannot be built: RuntimeError: ") as caught:
        networks.load_spec("lenet", batch=10**15)
    assert "\n" not in str(caught.value)


def test_an_error_of_threadcast_inside_the_function_is_passed_on(own: Path) -> None:
    own.write_text("from threadcast.networks import load\ndef build():\n    return load('absent')\n")
    with pytest.raises(NotFound, match="no network named 'absent'"):
        networks.load_spec(f"{own}:build")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def build(width): ...", "needs the arguments width; it must take none"),
        ("def build(*, a, b=1): ...", "needs the arguments a;"),
        ("class build: ...", "is a class; name a function"),
        ("build = 3", "is a int; name a function"),
        ("from torch import nn\nbuild = nn.Linear(1, 1)", "is a Linear; name a function"),
    ],
)
def test_what_is_not_a_function_without_arguments_is_rejected(own: Path, code: str, message: str) -> None:
    own.write_text(code)
    with pytest.raises(InvalidInput, match=message):
        networks.load_spec(f"{own}:build")


@pytest.mark.parametrize("override", [{"size": "small"}, {"batch": 2}, {"side": 8}, {"steps": 3}])
def test_sizes_and_overrides_are_for_registered_networks_only(own: Path, override: dict[str, int]) -> None:
    own.write_text("def build(): ...")
    with pytest.raises(InvalidInput, match=r"applies to registered networks only; set it inside .*own\.py"):
        networks.load_spec(f"{own}:build", **override)


def test_a_file_may_import_its_neighbours_and_a_module_is_found_in_the_working_folder(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "neighbour_of_own.py").write_text("WIDTH = 7\n")
    own.write_text(f"{HEAD}\ndef build():\n    from neighbour_of_own import WIDTH\n    return nn.Linear(3, WIDTH), x\n")
    monkeypatch.chdir(tmp_path)
    for spec in (f"{own}:build", "own:build"):
        workload = networks.load_spec(spec)
        assert workload.model(*workload.inputs).shape == (4, 7)
    monkeypatch.delitem(sys.modules, "own")
    monkeypatch.delitem(sys.modules, "neighbour_of_own")


def test_a_users_network_is_drawn_from_the_seed(own: Path) -> None:
    own.write_text(f"{HEAD}\ndef build():\n    return nn.Linear(3, 2), torch.randn(4, 3)\n")
    before = torch.get_rng_state()
    first, again, other = (networks.load_spec(f"{own}:build", seed=seed).inputs[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())

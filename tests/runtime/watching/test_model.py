"""What a graph takes for granted of a model and its optimizer, with the native library's quick look and without."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from tests.runtime.compiler import HAS_COMPILER, needs_compiler
from threadcast.runtime.engine.native.library import native_library
from threadcast.runtime.watching import model as model_watch
from threadcast.runtime.watching import python_values
from threadcast.runtime.watching.model import Watch

Optimizer = torch.optim.Optimizer

needs_quick_look = pytest.mark.skipif(
    not HAS_COMPILER or sys.version_info >= (3, 13), reason="needs a C++ compiler, and dictionaries that count changes"
)


class Model(nn.Module):
    """A parameter in a layer below, a buffer, and one that is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("unset", None)
        self.register_buffer("sparse", torch.eye(3).to_sparse())
        self.table = torch.zeros(2)
        self.alpha = 0.1

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x) * self.alpha
        return found


@pytest.fixture(params=["quick", pytest.param("slow", id="without the library")])
def watched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Model, Optimizer, Watch]:
    """A model and an optimizer with state, after a first look."""
    library = native_library()
    if request.param == "quick" and not library.tagged:
        pytest.skip("this Python has no quick look")
    for each in (model_watch, python_values):
        monkeypatch.setattr(each, "loaded_library", lambda: library if request.param == "quick" else None)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.layer(torch.ones(3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    found = Watch(model, optimizer)
    assert found.observe() is not None
    return model, optimizer, found


def _add_group(model: Model, optimizer: Optimizer) -> None:
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})


MOVES: dict[str, Callable[[Model, Optimizer], Any]] = {
    "another parameter": lambda m, o: setattr(m.layer, "weight", nn.Parameter(torch.ones(3, 3))),
    "another buffer": lambda m, o: setattr(m, "mean", torch.ones(3)),
    "another layer": lambda m, o: setattr(m, "layer", nn.Linear(3, 3)),
    "a further layer": lambda m, o: setattr(m, "more", nn.Linear(3, 3)),
    "no buffer": lambda m, o: delattr(m, "mean"),
    "other memory": lambda m, o: setattr(m.layer.weight, "data", torch.ones(3, 3)),
    "other strides": lambda m, o: setattr(m.layer.weight, "data", m.layer.weight.data.t()),
    "another type in the same place": lambda m, o: setattr(m.mean, "data", m.mean.data.view(torch.int32)),
    "fewer elements": lambda m, o: setattr(m.layer.weight, "data", m.layer.weight.data[:2]),
    "a forward of its own": lambda m, o: setattr(m.layer, "forward", torch.sin),
    "other state": lambda m, o: o.load_state_dict(o.state_dict()),
    "another plain tensor": lambda m, o: setattr(m, "table", torch.ones(2)),
    "no state": lambda m, o: o.state.clear(),
    "another dictionary of parameters": lambda m, o: setattr(m.layer, "_parameters", dict(m.layer._parameters)),
    "another dictionary of attributes": lambda m, o: setattr(m.layer, "__dict__", dict(vars(m.layer))),
}
HOOKS: dict[str, Callable[[Model, Optimizer], Any]] = {
    "a forward hook": lambda m, o: m.layer.register_forward_hook(print),
    "a backward hook": lambda m, o: m.layer.register_full_backward_hook(print),
    "a parameter's hook": lambda m, o: m.layer.weight.register_hook(lambda grad: grad),  # type: ignore[no-untyped-call]
    "a hook after accumulating": lambda m, o: m.layer.weight.register_post_accumulate_grad_hook(print),  # type: ignore[no-untyped-call]
    "an optimizer's hook": lambda m, o: o.register_step_post_hook(print),
    "a hook of all optimizers": lambda m, o: register_optimizer_step_post_hook(print),
    "a hook of all modules": lambda m, o: nn.modules.module.register_module_forward_hook(print),
}
SETTINGS: dict[str, Callable[[Model, Optimizer], Any]] = {
    "evaluation": lambda m, o: m.eval(),
    "one layer's mode": lambda m, o: m.layer.eval(),
    "a frozen parameter": lambda m, o: m.layer.bias.requires_grad_(False),
    "no momentum": lambda m, o: o.param_groups[0].update(momentum=0.0),
    "decay where there was none": lambda m, o: o.param_groups[0].update(weight_decay=0.5),
    "another choice": lambda m, o: o.param_groups[0].update(maximize=True),
    "a rate that is a tensor": lambda m, o: o.param_groups[0].update(lr=torch.tensor(0.1)),
    "another group": _add_group,
    "a number": lambda m, o: setattr(m, "alpha", 0.5),
    "a tuple": lambda m, o: setattr(m, "alpha", (1, 2)),
    "other parameters in a group": lambda m, o: o.param_groups[0]["params"].reverse(),
    "a choice that cannot be hashed": lambda m, o: o.param_groups[0].update(nesterov=[]),
}


@needs_compiler
@pytest.mark.parametrize("change", MOVES.values(), ids=list(MOVES))
def test_what_lies_elsewhere_is_seen(watched: tuple[Model, Optimizer, Watch], change: Callable[..., Any]) -> None:
    model, optimizer, found = watched
    assert not found.observe().changed
    change(model, optimizer)
    assert found.observe().changed
    assert found.observe().changed  # and stays so, until it is taken for granted
    found.renew()
    assert not found.observe().changed


def why_no_graph(watch: Watch) -> str | None:
    """Whose hooks a graph would not call."""
    now = watch.observe()
    return now.hooked or now.apart


@needs_compiler
@pytest.mark.parametrize("register", HOOKS.values(), ids=list(HOOKS))
def test_hooks_are_seen_and_that_they_have_gone(
    watched: tuple[Model, Optimizer, Watch], register: Callable[..., Any]
) -> None:
    model, optimizer, found = watched
    assert why_no_graph(found) is None
    handle = register(model, optimizer)
    assert why_no_graph(found) is not None
    handle.remove()
    assert why_no_graph(found) is None


@needs_compiler
@pytest.mark.parametrize("register", ["register_prehook", "register_hook"])
def test_hooks_of_the_node_that_accumulates_a_gradient_are_seen(
    watched: tuple[Model, Optimizer, Watch], register: str
) -> None:
    model, _, found = watched
    node = torch.autograd.graph.get_gradient_edge(model.layer.weight).node
    assert found.observe().hooked is None
    getattr(node, register)(lambda *_: None)
    assert found.observe().hooked == "a parameter"


@needs_compiler
@pytest.mark.parametrize("change", SETTINGS.values(), ids=list(SETTINGS))
def test_other_settings_are_seen(watched: tuple[Model, Optimizer, Watch], change: Callable[..., Any]) -> None:
    model, optimizer, found = watched
    before = found.observe().settings
    change(model, optimizer)
    assert found.observe().settings != before
    assert isinstance(hash(found.observe().settings), int)


@needs_compiler
def test_training_and_other_numbers_change_nothing(watched: tuple[Model, Optimizer, Watch]) -> None:
    model, optimizer, found = watched
    before = found.observe()
    optimizer.param_groups[0].update(lr=0.5, momentum=0.5, max_lr=3.0, label={})
    with torch.no_grad():
        model.layer.weight.add_(1)
        model.get_buffer("mean").copy_(torch.ones(3))
    now = found.observe()
    assert (now.changed, now.hooked, now.settings) == (before.changed, before.hooked, before.settings)


@needs_compiler
def test_what_changes_after_a_rate_is_seen(watched: tuple[Model, Optimizer, Watch]) -> None:
    model, optimizer, found = watched
    before = found.observe().settings
    optimizer.param_groups[0]["lr"] = 0.5
    assert found.observe().settings == before
    optimizer.param_groups[0]["weight_decay"] = 0.25
    assert (decayed := found.observe().settings) != before
    optimizer.param_groups[0]["lr"] = 0.25
    model.layer.register_forward_hook(print)
    assert found.observe().hooked is not None
    assert found.observe().settings == decayed


def test_a_hook_that_only_counts_steps_is_none(watched: tuple[Model, Optimizer, Watch]) -> None:
    _, _, found = watched

    class Counter:
        only_counts = True

        def __call__(self, *_: object) -> None: ...

    counting, other = register_optimizer_step_post_hook(Counter()), None
    try:
        assert why_no_graph(found) is None
        other = register_optimizer_step_post_hook(print)
        assert why_no_graph(found) is not None
    finally:
        counting.remove()
        if other is not None:
            other.remove()


def test_a_hook_in_a_table_that_was_exchanged_is_seen(watched: tuple[Model, Optimizer, Watch]) -> None:
    model, _, found = watched
    model.layer._forward_hooks = OrderedDict()
    assert found.observe().hooked is None
    model.layer.register_forward_hook(print)
    assert found.observe().hooked is not None


@needs_quick_look
def test_tensors_that_were_swapped_are_seen_or_at_least_not_read_after_they_have_gone() -> None:
    model = Model()
    untouched = native_library().Untouched([], [], [model.layer.weight])
    other = nn.Parameter(torch.ones(3, 3))
    try:
        torch.utils.swap_tensors(model.layer.weight, other)  # type: ignore[no-untyped-call]
    except RuntimeError:
        assert untouched.holds()  # torch refuses: somebody else holds the tensor
    else:
        assert not untouched.holds()


@needs_quick_look
def test_an_observation_of_what_was_not_touched_is_the_last_one() -> None:
    found = Watch(Model())
    assert found.observe() is found.observe()


@needs_compiler
def test_writes_other_bytes_of_a_sample_and_other_places_are_seen() -> None:
    weight, other = torch.ones(2), torch.ones(3)
    unwritten = native_library().Unwritten([weight, other], [[4], [0]])
    weight.numpy()[0] = 2.0
    assert unwritten.holds()
    weight.numpy()[1] = 2.0
    assert not unwritten.holds()
    weight.numpy()[1] = 1.0
    assert unwritten.holds()
    for change in (lambda: other.add_(0), lambda: setattr(other, "data", torch.ones(3))):
        unwritten = native_library().Unwritten([weight, other], [[4], [0]])
        change()
        assert not unwritten.holds()


class _WithSlot:
    __slots__ = ("value",)


def _cell(value: object) -> Any:
    def read() -> object:
        return value

    assert read.__closure__ is not None
    return read.__closure__[0]


def _function(x: int = 1_000, *, y: int = 2_000) -> int:
    return x + y


@needs_quick_look
def test_attributes_that_refer_to_other_objects_are_seen() -> None:
    slot, cell, layer, weight = _WithSlot(), _cell(1_000), nn.Identity(), torch.ones(2)
    slot.value = 3
    vars(weight)["value"] = 3  # makes the dictionary
    attributes: list[tuple[Any, str]] = [
        (slot, "value"), (cell, "cell_contents"), (layer, "__class__"), (_function, "__code__"),
        (layer, "__dict__"), (weight, "__dict__"), (_function, "__defaults__"), (_function, "__kwdefaults__"),
    ]  # fmt: skip
    others: dict[str, Any] = {
        "value": 4, "cell_contents": 5, "__class__": nn.ReLU, "__code__": _cell.__code__, "__dict__": {},
    }  # fmt: skip
    for owner, name in attributes:
        found = native_library().Unassigned(attributes)
        assert found.rest == []
        assert found.holds()
        before = getattr(owner, name)
        setattr(owner, name, others.get(name))
        assert not found.holds(), name
        setattr(owner, name, before)
        assert found.holds()
    del slot.value
    assert not found.holds()


@needs_quick_look
@pytest.mark.parametrize("kind", [dict, list, tuple])
def test_attributes_of_own_containers_have_places(kind: type[Any]) -> None:
    class Own(kind):  # type: ignore[misc]
        pass

    class Other(kind):  # type: ignore[misc]
        pass

    owner = Own()
    vars(owner)["value"] = 3
    attributes = [(owner, "__class__"), (owner, "__dict__")]
    for name, other in (("__class__", Other), ("__dict__", {})):
        found = native_library().Unassigned(attributes)
        assert found.rest == []
        assert found.holds()
        if kind is tuple and name == "__class__":  # of a tuple it cannot be exchanged
            continue
        setattr(owner, name, other)
        assert not found.holds()


@needs_quick_look
def test_a_slot_of_which_the_class_was_changed_is_looked_at_again() -> None:
    class Slotted:
        __slots__ = ("value",)

    owner = Slotted()
    owner.value = 3
    found = native_library().Unassigned([(owner, "value")])
    Slotted.value = property(lambda _: 4)  # type: ignore[assignment]
    assert not found.holds()


@needs_compiler
def test_attributes_without_a_place_of_their_own_are_told() -> None:
    class Computed:
        __slots__ = ("value",)

        def __getattribute__(self, name: str) -> object:
            return object()

    attributes = [(nn.Identity(), "training"), (Computed(), "value"), (3, "real"), (_WithSlot(), "missing")]
    assert native_library().Unassigned(attributes).rest == [0, 1, 2, 3]


@needs_quick_look
def test_only_dictionaries_lists_and_tensors_are_watched() -> None:
    wrong: tuple[list[Any], list[Any], list[Any]]
    for wrong in (([3], [], []), ([], [()], []), ([], [], [3])):
        with pytest.raises(ValueError, match="not a"):
            native_library().Untouched(*wrong)

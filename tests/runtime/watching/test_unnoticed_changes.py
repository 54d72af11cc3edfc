"""Changes that equal values, replaced methods, classes or missing names hide: answers and steps follow PyTorch's."""

from __future__ import annotations

import array
import builtins
import collections
import contextvars
import ctypes
import dataclasses
import datetime
import enum
import io
import operator
import os
import re
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import wraps
from types import MappingProxyType, MethodType, ModuleType
from typing import Any, ClassVar

import jinja2
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import StepLR
from torch.utils.benchmark.utils.common import set_torch_threads

import threadcast
from threadcast import networks
from threadcast.capture.guards import reachable
from threadcast.capture.guards.python_state import PythonState
from threadcast.runtime.engine.native.library import native_library
from threadcast.runtime.watching.python_values import ReadsWatch

pytestmark = pytest.mark.usefixtures("one_thread")


def line() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)).double()


def clipped(optimizer: torch.optim.Optimizer) -> None:
    before = optimizer.step

    def step(*arguments: Any) -> Any:
        torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.01)
        return before(*arguments)

    optimizer.step = step  # type: ignore[method-assign]


def without_effect(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step = MethodType(lambda self: None, optimizer)  # type: ignore[method-assign]


def scheduled_and_clipped(optimizer: torch.optim.Optimizer) -> None:
    StepLR(optimizer, 2)
    clipped(optimizer)


def clipped_class(optimizer: torch.optim.Optimizer) -> None:
    before = type(optimizer).step

    @wraps(before)
    def step(self: torch.optim.Optimizer, *arguments: Any) -> Any:
        torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 0.01)
        return before(self, *arguments)

    type(optimizer).step = step  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def step_of_sgd() -> Iterator[None]:
    """Puts the step of the class back."""
    before = torch.optim.SGD.step
    yield
    torch.optim.SGD.step = before  # type: ignore[method-assign]


def keeping_gradients(optimizer: torch.optim.Optimizer) -> None:
    """As for gradients that are accumulated over several steps."""
    optimizer.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]


@pytest.mark.parametrize("change", [clipped, without_effect, scheduled_and_clipped, clipped_class, keeping_gradients])
def test_an_optimizer_whose_step_was_replaced_takes_it_after_a_plan_of_the_gradients(
    change: Callable[[Any], None],
) -> None:
    mine, eager = line(), line()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (mine, eager)]
    x, y = torch.ones(3, 2).double(), torch.zeros(3, 2).double()
    with closing(threadcast.optimize_training(mine, mse_loss, optimizers[0], cores=1)) as step:
        for _ in range(3):
            step(x, y)
            one_step(eager, optimizers[1], x, y)
        for optimizer in optimizers:
            change(optimizer)
        for _ in range(3):
            step(x, y)
            one_step(eager, optimizers[1], x, y)
        assert re.match("PyTorch: the (optimizer's )?(step|zero_grad).* was replaced", step.update_by)
    for found, wanted in zip(mine.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(found, wanted)


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(mse_loss(model(x), y))
    optimizer.step()
    optimizer.zero_grad()


def test_a_learning_rate_schedule_leaves_the_optimizer_capturable() -> None:
    model = line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = StepLR(optimizer, 2)
    x, y = torch.ones(3, 2).double(), torch.zeros(3, 2).double()
    with closing(threadcast.optimize_training(model, mse_loss, optimizer, cores=1)) as step:
        for _ in range(4):
            step(x, y)
            schedule.step()
        assert [report.reason for report in step.reports] == [""]


class Scaled(nn.Module):
    """Multiplies by its attribute; the type of the number decides what is computed."""

    def __init__(self, factor: Any) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        factor = self.factor[0] if isinstance(self.factor, tuple) else self.factor
        if isinstance(factor, bool):
            return x - 5
        return x * factor


def follows(model: Callable[..., Tensor], change: Callable[[], Any], *arguments: Any) -> None:
    with closing(threadcast.optimize(model, cores=1, backends=False)) as call, torch.no_grad():
        for turn in range(6):
            if turn == 3:
                change()
            torch.testing.assert_close(call(*arguments), model(*arguments))
        assert call.reports[0].reason == ""


class Negated(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


class Signed(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return torch.copysign(x, self.factor)


@pytest.mark.parametrize(
    ("model", "name", "after"),
    [
        (Scaled(2), "factor", 2.0),
        (Scaled(1), "factor", True),
        (Scaled((1, 2)), "factor", (1.0, 2.0)),
        (Signed(0.0), "factor", -0.0),
        (Scaled(2), "__class__", Negated),
    ],
)
def test_an_equal_attribute_of_another_type_and_another_class_are_others(model: Any, name: str, after: Any) -> None:
    follows(model, lambda: setattr(model, name, after), torch.arange(4))


def test_an_argument_of_another_sign_and_another_order_of_layers_are_others() -> None:
    with closing(threadcast.optimize(torch.copysign, cores=1, backends=False)) as call:
        assert [float(call(torch.ones(()), zero)) for zero in (0.0, 0.0, -0.0)] == [1.0, 1.0, -1.0]
    layers = line().float()
    follows(layers, lambda: layers._modules.update({"0": layers._modules.pop("0")}), torch.ones(3, 2))


def test_attributes_of_functions_and_names_that_appear_later_are_read() -> None:
    def scaled(x: Tensor) -> Tensor:
        return x * scaled.factor * getattr(scaled, "late", 1.0) * (3 if "LATE" in globals() else 1)  # type: ignore

    scaled.factor = 1.0  # type: ignore[attr-defined]
    follows(scaled, lambda: setattr(scaled, "factor", 3.0), torch.ones(3))
    follows(scaled, lambda: setattr(scaled, "late", 3.0), torch.ones(3))
    try:
        follows(scaled, lambda: globals().update(LATE=True), torch.ones(3))
    finally:
        globals().pop("LATE", None)


FACTOR = 1.0
EVALUATE = eval


def executed(x: Tensor) -> Any:
    found: dict[str, Any] = {"x": x}
    exec("y = x * FACTOR", globals(), found)
    return found["y"]


@pytest.mark.parametrize(
    "read",
    [lambda x: eval("x * FACTOR"), lambda x: x * eval("eval('FACTOR')"), executed,
     lambda x, name="FACTOR": eval(f"x * {name}"), lambda x: x * eval("FACT".__add__("OR")),
     lambda x: x * next(map(eval, ["FACTOR"])),
     lambda x: eval(compile("x * FACTOR", "", "eval")), lambda x: x * builtins.eval("FACTOR")],
    ids=["eval", "nested", "exec", "f-string", "method", "map", "compile", "builtins"],
)  # fmt: skip
def test_code_of_texts_is_refused(read: Callable[[Tensor], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    x, found = torch.ones(3), list[float]()
    with closing(threadcast.optimize(read, cores=1, backends=False)) as call:
        with pytest.warns(UserWarning, match="which runs a text as code"):
            found += [float(call(x)[0]) for _ in range(2)]
        monkeypatch.setitem(globals(), "FACTOR", 3.0)
        found.append(float(call(x)[0]))
    assert found == [1.0, 1.0, 3.0]


clock = time.perf_counter


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    follows(
        lambda x: x * float(os.environ.get("FACTOR", "1")), lambda: monkeypatch.setenv("FACTOR", "3"), torch.ones(3)
    )


def own_eval() -> Any:
    """A function of one's own that is called `eval`."""
    names: dict[str, Any] = {"__name__": "own", "eval": lambda layer, x: layer.eval()(x), "layer": nn.ReLU()}
    exec("def called(x): return eval(layer, x)", names)
    return names["called"]


def bar_of_tqdm() -> Any:
    """Shows how far a loop is by a clock that it holds."""
    names: dict[str, Any] = {"__name__": "tqdm.std", "time": time.time}
    exec("def bar(x): return x if time() else []", names)
    return names["bar"]


class Templated:
    """Makes its function of a template once, as torch_geometric's layers do."""

    def __init__(self) -> None:
        self.text = jinja2.Environment().from_string("def called(x): return x * {{ factor }}").render(factor=2)

    def __call__(self, x: Tensor) -> Tensor:
        return x * 2


def with_one_thread(x: Tensor) -> Tensor:
    with set_torch_threads(1):
        torch.set_num_threads(1)
        return x * 2


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda x: x * EVALUATE("FACTOR"), "eval, which runs a text as code"),
        (lambda x: x * clock(), "perf_counter, which reads a clock"),
        (lambda x, draw=os.urandom: x * draw(1)[0], "urandom, which draws random numbers"),
        (lambda x: x * datetime.datetime.now().second, "which gives something else each time"),
        (lambda x: x * date.today().day, "which gives something else each time"),
        (lambda x: x * torch.get_num_threads(), "threads, which plans change"),
        (lambda x: x * torch.get_num_interop_threads(), "threads, which plans change"),
        (lambda x, count=torch.get_num_threads: x * count(), "threads, which plans change"),
        (
            lambda x, state=torch.set_rng_state: (state(torch.get_rng_state()), x)[1],
            "set_rng_state by a name of its own",
        ),
        (lambda x: x * 2 if isinstance(x, date | datetime.datetime) else x, None),
        (lambda x: collections.namedtuple("Pair", "a b")(x, 1).a, None),
        (lambda x: dataclasses.make_dataclass("Made", ["value"])(x).value, None),
        (own_eval(), None),
        (lambda x: re.compile("a"), None),
        (bar_of_tqdm(), None),
        (lambda x: Templated()(x), None),
        (with_one_thread, None),
    ],
)
def test_what_gives_something_else_each_time_is_refused_and_what_only_looks_so_is_not(
    read: Callable[[Tensor], Any], said: str | None
) -> None:
    found = PythonState([read]).unwatchable
    assert found is None if said is None else said in str(found)


@pytest.mark.parametrize(
    "value",
    [
        weakref.ref(Scaled), ctypes.c_double(1), array.array("d", [1.0]), memoryview(bytearray(2)),
        io.StringIO(), io.BytesIO(), io.FileIO(os.devnull), io.TextIOWrapper(io.FileIO(os.devnull)),
        {"factor": 1.0}.values(),
        np.array([object()], dtype=object), threading.local(),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_cannot_be_looked_into_is_refused(value: Any) -> None:
    assert PythonState([lambda x: (x, value)]).unwatchable is not None


VARIABLE: contextvars.ContextVar[float] = contextvars.ContextVar("factor")
TABLE, DEFAULT = {"factor": 1.0}, field(default=1.0)
PROXY = MappingProxyType(TABLE)


@pytest.mark.parametrize(
    ("read", "change", "said"),
    [
        (lambda x: x * VARIABLE.get(1.0), lambda value: VARIABLE.set(value), "the context variable factor"),
        (lambda x: x * PROXY["factor"], lambda value: TABLE.update(factor=value), "factor"),
        (lambda x: x * DEFAULT.default, lambda value: setattr(DEFAULT, "default", value), "default"),
    ],
    ids=["a context variable", "a dictionary behind a proxy", "a slot of an object of a library"],
)
def test_values_in_unusual_places_are_watched_and_restored(read: Any, change: Any, said: str) -> None:
    change(1.0)
    state = PythonState([read])
    assert (state.unwatchable, state.changed()) == (None, None)
    change(2.0)
    assert said in str(state.restore())
    assert (state.changed(), read(1.0)) == (None, 1.0)


class Marked(float):
    """A number with attributes."""


class WithProperty(type):
    """A class of classes that have a property."""

    @property
    def factor(cls) -> float:
        return cls._factor  # type: ignore[attr-defined, no-any-return]


class Owner(metaclass=WithProperty):
    """Its `factor` is computed from `_factor`."""

    _factor = 1.0


class Mode(enum.Enum):
    """An enumeration whose members have another attribute."""

    FAST = 1


def with_factor(owner: Any) -> Any:
    owner.factor = 1.0
    return owner


@pytest.mark.parametrize(
    ("owner", "name"),
    [(lambda: with_factor(torch.ones(2)), "factor"), (lambda: with_factor(Marked(1)), "factor"),
     (lambda: with_factor(Mode.FAST), "factor"), (lambda: Owner, "_factor")],
    ids=["tensor", "subclass of float", "member of an enumeration", "property of a metaclass"],
)  # fmt: skip
def test_attributes_of_unusual_owners_are_read(owner: Callable[[], Any], name: str) -> None:
    read = owner()
    try:
        follows(lambda x: x * read.factor, lambda: setattr(read, name, 3.0), torch.ones(3))
    finally:
        Owner._factor = 1.0


class Plain:
    """An object whose attribute no code spells out."""


@dataclass(eq=False, repr=False, init=False)
class Fields:
    """A data class whose attribute no code of its own reads."""

    zq: float


def matched(owner: Any) -> Any:
    match owner:
        case Plain(zq=found):
            return found


class Shared:
    """A class of which no code spells out an attribute."""

    zr: ClassVar[Any] = 1.0


SETTINGS: Any = ModuleType("settings_of_a_user")
CHOSEN = "".join(("z", "r"))


@pytest.mark.parametrize("value", [1.0, {"a": [1.0]}])
@pytest.mark.parametrize("owner", [Shared, Shared(), SETTINGS], ids=["class", "object of a class", "module"])
def test_attributes_of_classes_and_modules_may_have_computed_names(owner: Any, value: Any) -> None:
    holder = type(owner) if isinstance(owner, Shared) else owner
    holder.zr = value
    state = PythonState([lambda x: x * getattr(owner, CHOSEN)])
    assert (state.unwatchable, state.changed()) == (None, None)
    if isinstance(value, dict):
        value["a"][0] += 1.0
    else:
        holder.zr = 2.0
    assert ".zr" in str(state.changed())


GETTER = operator.attrgetter("zq")
READERS: dict[str, Callable[[Any], Any]] = {
    "case": matched,
    "asdict": lambda owner: dataclasses.asdict(owner)["zq"],
    "attrgetter": lambda owner: GETTER(owner),
    "__getattribute__": lambda owner: owner.__getattribute__("zq"),
    "__reduce_ex__": lambda owner: owner.__reduce_ex__(2)[2]["zq"],
}


@pytest.mark.parametrize("way", READERS)
def test_attributes_that_code_does_not_spell_out_are_read(way: str) -> None:
    owner, read = (Fields if way == "asdict" else Plain)(), READERS[way]
    vars(owner)["zq"] = 1.0
    follows(lambda x: x * read(owner), lambda: vars(owner).update(zq=3.0), torch.ones(3))


def test_functions_and_layers_of_libraries_may_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    before, forward = torch.nn.functional.relu, nn.Linear.forward
    follows(
        lambda x: torch.nn.functional.relu(x),
        lambda: monkeypatch.setattr(torch.nn.functional, "relu", lambda x: before(x) * 3),
        torch.ones(3),
    )
    follows(
        line().float(),
        lambda: monkeypatch.setattr(nn.Linear, "forward", lambda self, x: forward(self, x) * 3),
        torch.ones(3, 2),
    )


class Holding:
    """Holds a value."""

    def __init__(self, value: Any) -> None:
        self.value = value


def test_what_holds_too_many_objects_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callable may reach what holds all of a program; looking at all of it would take minutes and gigabytes."""

    held = [Holding(1.0) for _ in range(300)]
    assert PythonState([lambda x: (x, held)]).unwatchable is None
    monkeypatch.setattr(reachable, "MOST_OBJECTS", 100)
    reason = PythonState([lambda x: (x, held)]).unwatchable
    assert reason is not None
    assert "more than 100 objects" in reason


def test_a_context_manager_that_was_entered_is_refused() -> None:
    manager = contextmanager(lambda: (yield None))()
    assert PythonState([lambda x: (x, manager)]).unwatchable is None
    with manager:
        assert PythonState([lambda x: (x, manager)]).unwatchable is not None


class _Making(OrderedDict[str, type]):
    """Gives a new object of a class each time that it is asked for one, as the activations of transformers do."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key)()


def test_a_dictionary_that_makes_what_it_gives_is_watched_by_what_it_holds() -> None:
    table = _Making(activation=nn.ReLU)
    state = PythonState([lambda x: table["activation"](x)])
    assert (state.unwatchable, state.restore()) == (None, None)
    assert list(dict.values(table)) == [nn.ReLU]
    table["activation"] = nn.GELU
    assert state.restore() is not None
    assert list(dict.values(table)) == [nn.ReLU]


@pytest.mark.parametrize("name", networks.names())
def test_every_network_can_be_watched(name: str) -> None:
    workload = networks.load(name, networks.sizes(name)[0], batch=2)
    assert PythonState([workload.model, workload.loss]).unwatchable is None


class Tripled(Tensor):
    """A tensor whose operators do more than those of a plain one."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(func, types, args, kwargs or {})
        return found * 3 if func is torch.tanh else found


def test_an_argument_of_a_tensor_subclass_runs_as_pytorch_does() -> None:
    plain = torch.ones(3)
    with closing(threadcast.optimize(torch.tanh, cores=1, backends=False)) as call:
        call(plain)
        with pytest.warns(UserWarning, match="an argument is a Tripled"):
            found = call(plain.as_subclass(Tripled))
    torch.testing.assert_close(found.as_subclass(Tensor), plain.tanh() * 3)


def test_another_order_of_a_dictionary_is_noticed() -> None:
    class Staged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stages = OrderedDict(double=lambda x: x * 2, shift=lambda x: x + 1)

        def forward(self, x: Tensor) -> Tensor:
            for stage in self.stages.values():
                x = stage(x)
            return x

    native_library()
    model = Staged()
    watch = ReadsWatch(model, ())
    assert watch.changed() is None
    assert watch.changed() is None
    model.stages.move_to_end("double")
    assert "order" in (watch.changed() or "")

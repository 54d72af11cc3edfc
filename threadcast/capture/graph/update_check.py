"""Checks that the updates in a graph give the same values as the optimizer's own step.

PyTorch's fused kernels are not right for every type in every version: `_fused_sgd_` of PyTorch 2.13 leaves bfloat16 and
float16 parameters of 16 elements and more as they were. So each kernel is compared with the user's optimizer, on
tensors of many sizes and layouts, when a process first needs it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from threadcast.capture.graph.lowering import lower
from threadcast.capture.graph.optimizers import (
    NUMBERS,
    SettingInputs,
    Update,
    choices_of,
    is_dense,
    keep_state,
    state_of,
    updates_of,
)
from threadcast.capture.graph.program import Input
from threadcast.capture.graph.recorder import Recorder
from threadcast.threads.openmp import torch_threads

_SIZES = (
    (3,), (33,), (0,), (), (5, 13), (1,), (7,), (8,), (15,), (16,), (17,), (31,), (64,), (65,), (3, 0, 2), (70_001,),
)  # fmt: skip
"""Shapes below, at and above the width of vectors, odd ones, empty ones, and one that several threads share."""
_STEPS = 3
_ULPS = 16
"""Largest difference that is accepted of a kernel, in rounding errors of the type at the element's largest value plus
its last change."""


def fused_is_right(update: Update, parameter: Tensor, state: Sequence[Tensor]) -> bool:
    """Whether the fused kernel updates parameters of this type and layout as the optimizer's own step does."""
    return _may_be_fused(update, parameter, state) and _checked(update, parameter.dtype, _last_of(state), by_step=False)


def fused_step_is_right(update: Update, parameter: Tensor, state: Sequence[Tensor]) -> bool:
    """Whether the optimizer's step, with `fused=True`, does what it does without; as `fused_is_right`."""
    return _may_be_fused(update, parameter, state) and _checked(update, parameter.dtype, _last_of(state), by_step=True)


def _may_be_fused(update: Update, parameter: Tensor, state: Sequence[Tensor]) -> bool:
    """Whether a kernel that walks through memory, whatever shapes and strides say, finds what belongs together."""
    if not parameter.is_floating_point() or not is_dense(parameter) or parameter.device.type != "cpu":
        return False
    counts = state[-1:] if update.state_names[-1:] == ("step",) else []
    tensors = state[: len(state) - len(counts)]
    looks = parameter.dtype, parameter.shape, parameter.stride()
    return all((one.dtype, one.shape, one.stride()) == looks for one in tensors) and all(
        one.numel() == 1 for one in counts
    )


def _last_of(state: Sequence[Tensor]) -> torch.dtype:
    """The type of the last state tensor, which may count steps."""
    return state[-1].dtype if state else torch.float32


def _checked(update: Update, dtype: torch.dtype, step: torch.dtype, *, by_step: bool) -> bool:
    kind: Any = update.kind
    rate = update.group["lr"].dtype if isinstance(update.group["lr"], Tensor) else None
    return _agrees(kind, choices_of(kind, update.group), rate, dtype, step, by_step)


@cache
def _agrees(
    kind: type[Optimizer], choices: tuple[tuple[str, Hashable], ...], rate: torch.dtype | None, dtype: torch.dtype,
    step: torch.dtype, by_step: bool,
) -> bool:  # fmt: skip
    """Train some tensors by the fused kernel and by the optimizer, and compare them after each step.

    The kernel is called by a graph, or `by_step` by the optimizer's own step with `fused`. All else has one thread: so
    short operators would wait for each other's threads, for up to 2 s on busy cores.
    """
    generator, threads = torch.Generator().manual_seed(0), torch.get_num_threads()
    first = _parameters(_SIZES, dtype, generator)
    both = [[torch.nn.Parameter(p.clone()) for p in first] for _ in range(2)]
    mine, theirs = (_optimizer(kind, parameters, dict(choices), rate) for parameters in both)
    with suppress(RuntimeError), torch_threads(1):
        updates = (_FusedSteps if by_step else _Updates)(mine, both[0], step)
        judge = _Judge(both[1], dtype)
        for number in range(_STEPS):
            for optimizer in (mine, theirs):
                _set_numbers(optimizer, number)
            gradients = _gradients(first, generator, maximize=mine.param_groups[0]["maximize"])
            for parameter, gradient in zip(both[1], gradients, strict=True):
                parameter.grad = gradient
            _step(theirs)
            with torch_threads(threads):
                updates.run(gradients)
            judge.note(theirs)
            if not judge.accepts(mine, theirs):
                return False
        return True
    return False


def _step(optimizer: Optimizer) -> None:
    """Make a step without hooks, which a user may have set for all optimizers, and which may count steps."""
    step: Any = type(optimizer).step
    getattr(step, "__wrapped__", step)(optimizer)


def _parameters(shapes: Sequence[tuple[int, ...]], dtype: torch.dtype, generator: torch.Generator) -> list[Tensor]:
    """Tensors of these shapes, one in channels_last and one transposed, of numbers that are 1 or more in size."""
    random = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in (*shapes, (2, 3, 4, 5), (7, 6))]
    made = [(x + x.sgn()).to(dtype) for x in random]
    return [*made[:-2], made[-2].contiguous(memory_format=torch.channels_last), made[-1].t()]


def _gradients(parameters: Sequence[Tensor], generator: torch.Generator, *, maximize: bool) -> list[Tensor]:
    """Gradients of many orders of magnitude, some of them 0, with the signs of the parameters.

    With other signs a gradient and a decayed weight could cancel, and Adam would turn the rounding error that is left
    into a whole step.
    """
    made = []
    for parameter in parameters:
        exponents = torch.empty(parameter.shape, dtype=torch.float64).uniform_(-4, 2, generator=generator)
        size = 10**exponents * (exponents > -3.8) * (-1 if maximize else 1)
        made.append(torch.empty_like(parameter).copy_(parameter.sgn() * size))
    return made


def _optimizer(
    kind: type[Optimizer], parameters: list[torch.nn.Parameter], choices: dict[str, Any], rate: torch.dtype | None
) -> Optimizer:
    made: Optimizer = kind(parameters, lr=0.1)  # type: ignore[call-arg]
    for name, value in choices.items():
        if name not in NUMBERS[kind]:
            made.param_groups[0][name] = value
    for name in ("momentum", "weight_decay"):
        if name in choices:
            made.param_groups[0][name] = 0.0 if choices[name] else 0.9
    if rate is not None:
        made.param_groups[0]["lr"] = torch.tensor(0.1, dtype=rate)
    return made


def _set_numbers(optimizer: Optimizer, step: int) -> None:
    """Other numbers in each step; those that are 0 stay so."""
    group = optimizer.param_groups[0]
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(0.05 / (step + 1))
    else:
        group["lr"] = 0.05 / (step + 1)
    numbers = {"momentum": 0.9 - 0.05 * step, "weight_decay": 0.1 + 0.1 * step, "eps": 1e-6 * (step + 1)}
    if not group.get("nesterov"):
        numbers["dampening"] = 0.1 * step  # none in the first step, which is not dampened
    for name, value in numbers.items():
        if group.get(name) or (name in group and name in ("eps", "dampening")):
            group[name] = value
    if "betas" in group:
        group["betas"] = (0.9 - 0.05 * step, 0.99 - 0.01 * step)


def _state(optimizer: Optimizer, parameter: Tensor, update: Update, step: torch.dtype) -> list[Tensor]:
    """Give the optimizer the state of a parameter before its first step, steps counted by type `step`; return it."""
    state = state_of(optimizer, parameter, update)
    if "step" in state:
        state["step"] = state["step"].to(step)
    keep_state(optimizer, parameter, state)
    return list(state.values())


class _FusedSteps:
    """The optimizer's own steps by its fused kernels."""

    def __init__(self, optimizer: Optimizer, parameters: list[torch.nn.Parameter], step: torch.dtype) -> None:
        self._optimizer, self._parameters = optimizer, parameters
        for parameter, update in updates_of(optimizer).items():
            _state(optimizer, parameter, update, step)

    def run(self, gradients: Sequence[Tensor]) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        (group,) = self._optimizer.param_groups
        group["fused"] = True
        _step(self._optimizer)
        group["fused"] = None


class _Updates:
    """A graph of nothing but updates of `parameters`."""

    def __init__(self, optimizer: Optimizer, parameters: list[torch.nn.Parameter], step: torch.dtype) -> None:
        updates = updates_of(optimizer)
        self._settings = SettingInputs(optimizer)
        names = list(self._settings.tensors)
        recorder = Recorder()
        states = [_state(optimizer, parameter, updates[parameter], step) for parameter in parameters]
        self._gradients = [torch.empty_like(parameter) for parameter in parameters]

        def apply(values: list[Tensor], gradients: list[Tensor], held: list[list[Tensor]], given: list[Tensor]) -> None:
            recorder.phase = "update"
            settings = dict(zip(names, given, strict=True))
            numbers = self._settings.numbers(0, settings, recorder.number)
            with torch.no_grad():
                for parameter, value, gradient, state in zip(parameters, values, gradients, held, strict=True):
                    updates[parameter].apply(value, gradient, state, numbers)

        arguments = [list(parameters), self._gradients, states, list(self._settings.tensors.values())]
        recording = recorder.record(apply, arguments)
        self._values = torch.utils._pytree.tree_leaves(arguments)
        inputs = [Input("input", f"value {i}") for i in range(len(self._values))]
        lowered = lower(recording, inputs, self._values, split=False)
        self._program = lowered.program
        self._values += lowered.constants.values()

    def run(self, gradients: Sequence[Tensor]) -> None:
        self._settings.renew()
        for mine, gradient in zip(self._gradients, gradients, strict=True):
            mine.copy_(gradient)
        self._program.run(self._values)


class _Judge:
    """Compares two optimizers' tensors up to rounding, which is bounded by the values' size and changes so far."""

    def __init__(self, parameters: list[torch.nn.Parameter], dtype: torch.dtype) -> None:
        self._exact = dtype not in (torch.float32, torch.float64)
        self._scale: dict[tuple[int, str], Tensor] = {}
        self._before: dict[tuple[int, str], Tensor] = {}
        for i, parameter in enumerate(parameters):
            self._before[i, "parameter"] = parameter.detach().clone()

    def note(self, optimizer: Optimizer) -> None:
        """Record the values of the optimizer's tensors after a step."""
        for key, value in _tensors(optimizer):
            before = self._before.get(key, torch.zeros_like(value))
            scale = torch.maximum(self._scale.get(key, before.abs()), value.abs())
            self._scale[key] = scale + (value - before).abs()
            self._before[key] = value.clone()

    def accepts(self, optimizer: Optimizer, other: Optimizer) -> bool:
        """Whether all tensors of both are equal but for rounding; of types that round coarsely, equal."""
        for (key, found), (_, wanted) in zip(_tensors(optimizer), _tensors(other), strict=True):
            same = (found == wanted) | (found.isnan() & wanted.isnan())
            if not self._exact:
                bound = _ULPS * torch.finfo(wanted.dtype).eps * self._scale[key]
                same |= (found - wanted).abs() <= bound
            if not same.all():
                return False
        return True


def _tensors(optimizer: Optimizer) -> list[tuple[tuple[int, str], Tensor]]:
    found = []
    for i, parameter in enumerate(optimizer.param_groups[0]["params"]):
        found.append(((i, "parameter"), parameter.detach()))
        found += [((i, name), value) for name, value in sorted(optimizer.state[parameter].items())]
    return found

"""What eager PyTorch does with a program, both functions do: captured whole or left alone, in each of many calls.

Results, errors, what a call leaves in arguments, buffers, `.grad` and Python values, and random numbers are compared.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.func import functional_call
from torch.nn.functional import dropout, mse_loss
from torch.utils import _pytree as pytree

import threadcast
from tests.runtime.asserting import asserting

pytestmark = [
    pytest.mark.usefixtures("one_thread", "plans_win"),
    pytest.mark.filterwarnings("ignore:threadcast runs this as PyTorch does"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]

CALLS, STEPS = 30, 12
"""Calls and training steps of each program, in which learning ends."""


class Program(nn.Module):
    """What `run` does with the module, which has a layer, a buffer and a number, and with its arguments."""

    def __init__(self, run: Callable[..., Any], layer: Callable[[], nn.Module] = lambda: nn.Linear(4, 4)) -> None:
        super().__init__()
        self.run, self.layer, self.calls = run, layer().double(), 0
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))

    def forward(self, *arguments: Tensor) -> Any:
        return self.run(self, *arguments)


def rows(n: int, *, count: int = 5) -> tuple[Tensor, ...]:
    return (torch.randn(count, 4, generator=torch.Generator().manual_seed(n), dtype=torch.float64),)


def pairs(n: int) -> tuple[Tensor, ...]:
    """Two arguments, first apart, then the same tensor, views of one another, or overlapping."""
    (x,), (y,), (whole,) = rows(n), rows(n + 50), rows(n, count=6)
    return (x, y) if n < 4 else ((x, x), (x, x.view(5, 4)), (whole[:5], whole[1:]), (x, y))[n % 4]


def outcome(run: Callable[..., Any], *arguments: Any, seed: int) -> tuple[Any, ...]:
    """What a call returns or raises, what it leaves in its arguments, and the state of the random numbers after it."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    try:
        result, error = run(*arguments), None
    except Exception as raised:  # noqa: BLE001 - both raise the same
        result, error = None, (type(raised), str(raised))
    told = [
        (one.requires_grad, one.grad if one.is_leaf else None, one.stride()) if isinstance(one, Tensor) else type(one)
        for one in pytree.tree_leaves((result, arguments))
    ]
    return result, arguments, torch.get_rng_state(), random.random(), np.random.rand(), told, error


def state_of(model: nn.Module) -> Any:
    """The tensors, gradients and Python values of a module."""
    values = {name: value for name, value in vars(model).items() if isinstance(value, bool | int | float | list)}
    return model.state_dict(), {name: one.grad for name, one in model.named_parameters()}, values


def same(found: Any, wanted: Any, when: str) -> None:
    (mine, structure), (theirs, wanted_structure) = pytree.tree_flatten(found), pytree.tree_flatten(wanted)
    assert structure == wanted_structure, when
    for one, other in zip(mine, theirs, strict=True):
        if isinstance(other, Tensor):
            torch.testing.assert_close(one, other, equal_nan=True, msg=lambda text: f"{when}: {text}")
        else:
            assert one == other, when


def infers_as_eager(model: nn.Module, inputs: Callable[[int], tuple[Any, ...]]) -> list[str]:
    """Compare `optimize` with eager PyTorch; return what ran the calls, after each."""
    theirs, states = copy.deepcopy(model), []
    with closing(threadcast.optimize(model, backends=False)) as call:
        for n in range(CALLS):
            with torch.no_grad():
                wanted = outcome(theirs, *inputs(n), seed=n)
            same(outcome(call, *inputs(n), seed=n), wanted, f"call {n}")
            same(state_of(model), state_of(theirs), f"after call {n}")
            states.append(repr(call.reports[0].runs) + call.reports[0].reason)
    return states


def trains_as_eager(model: nn.Module, inputs: Callable[[int], tuple[Any, ...]]) -> list[str]:
    """Compare `optimize_training` with eager PyTorch; return what ran the steps, after each."""
    theirs, states = copy.deepcopy(model), []
    own, other = (torch.optim.SGD(one.parameters(), lr=0.01, momentum=0.9) for one in (model, theirs))

    def eager(*batch: Any) -> Tensor:
        other.zero_grad()
        found = loss(theirs(*batch[:-1]), batch[-1])
        found.backward()
        other.step()
        other.zero_grad()
        return found.detach()

    with closing(threadcast.optimize_training(model, loss, own)) as step:
        for n in range(STEPS):
            target = rows(n + 100)[0]
            wanted = outcome(eager, *inputs(n), target.clone(), seed=n)
            same(outcome(step, *inputs(n), target.clone(), seed=n), wanted, f"step {n}")
            same(state_of(model), state_of(theirs), f"after step {n}")
            same(own.state_dict()["state"], other.state_dict()["state"], f"optimizer after step {n}")
            states.append(repr(step.reports[0].runs) + step.reports[0].reason)
    return states


def loss(found: Any, target: Tensor) -> Tensor:
    """Of all tensors that a program returns."""
    tensors = [one.double() for one in pytree.tree_leaves(found) if isinstance(one, Tensor)]
    value: Tensor = sum((one.pow(2).mean() - target.mean()) ** 2 for one in tensors)  # type: ignore[assignment]
    return value


def encoder(pool: Callable[[Tensor], Tensor]) -> Program:
    def layers() -> nn.Module:
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()

    return Program(lambda m, x, mask: pool(m.layer(x, src_key_padding_mask=mask)), layers).eval()


def padded(n: int, *, floats: bool) -> tuple[Tensor, Tensor]:
    """Sequences and which of their positions are padding: none at first, then those at the right, in other numbers."""
    made = torch.Generator().manual_seed(n)
    x = torch.randn(3, 6, 8, generator=made, dtype=torch.float64)
    lengths = torch.randint(1, 7, (3,), generator=made) if n > 3 else torch.full((3,), 6)
    mask = torch.arange(6)[None] >= lengths[:, None]
    return x, torch.zeros(3, 6, dtype=torch.float64).masked_fill(mask, -torch.inf) if floats else mask


@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("pool", [lambda h: h, lambda h: h.mean(1), lambda h: h.amax(1)], ids=["all", "mean", "max"])
def test_an_encoder_with_padding_takes_the_fast_path_of_eager(pool: Callable[[Tensor], Tensor], floats: bool) -> None:
    torch.manual_seed(0)
    infers_as_eager(encoder(pool), lambda n: padded(n, floats=floats))


WAYS: dict[str, Callable[[Tensor], bool]] = {
    "torch.compiler.is_compiling": lambda _: torch.compiler.is_compiling(),
    "torch.compiler.is_dynamo_compiling": lambda _: torch.compiler.is_dynamo_compiling(),
    "torch.compiler.is_exporting": lambda _: torch.compiler.is_exporting(),
    "torch.jit.is_tracing": lambda _: torch.jit.is_tracing(),
    "torch.overrides.has_torch_function": lambda x: torch.overrides.has_torch_function((x, x + 1)),
    "torch.is_grad_enabled": lambda _: torch.is_grad_enabled(),
    "requires_grad": lambda x: x.requires_grad,
    "a view": lambda x: x._base is not None,
    "a fake tensor": lambda x: type(x) is not Tensor,
    "a mode": lambda _: torch._C._len_torch_dispatch_stack() > 0,
}


@pytest.mark.parametrize("compare", [infers_as_eager, trains_as_eager])
@pytest.mark.parametrize("asks", WAYS)
def test_a_branch_on_how_the_program_runs_is_that_of_eager(asks: str, compare: Callable[..., list[str]]) -> None:
    states = compare(Program(lambda m, x: m.layer(x) * 2 if WAYS[asks](x) else m.layer(x) - 1), rows)
    assert "plan" in states[-1] or asks in ("a fake tensor", "a mode"), "left alone, as a step by the plan shows it"


def forces(m: Program, x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        far = torch.cdist(x, x)
        i, j = torch.nonzero((far < 2.5) & (far > 0), as_tuple=True)
        length = (x[i] - x[j]).norm(dim=1, keepdim=True)
        energy = m.layer(torch.cat([length, length**2, 1 / length, (-length).exp()], 1)).sum()
        (found,) = grad(energy, x, create_graph=True, allow_unused=True)
    return energy, torch.zeros_like(x) if found is None else -found


def smooth_forces(m: Program, x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        near = (-(x[:, None] - x[None]).pow(2).sum(-1)).exp().sum(1, keepdim=True)
        energy = (m.layer(x) * near).sum()
        (found,) = grad(energy, x, create_graph=True)
    return energy, -found


def gradient_penalty(m: Program, x: Tensor) -> Tensor:
    with torch.enable_grad():
        share = torch.rand(len(x), 1, dtype=x.dtype)
        mixed = (share * x + (1 - share) * x.flip(0)).requires_grad_()
        (found,) = grad(m.layer(mixed).tanh().sum(), mixed, create_graph=True)
    return m.layer(x).mean() + (found.norm(2, dim=1) - 1).pow(2).mean()


def second_derivatives(m: Program, x: Tensor) -> Tensor:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        u = m.layer(x).tanh()
        (first,) = grad(u.sum(), x, create_graph=True)
        (second,) = grad(first.sum(), x, create_graph=True)
    return second + u - x.detach().sin()


def inner_step(m: Program, x: Tensor) -> Any:
    with torch.enable_grad():
        weights = dict(m.layer.named_parameters())
        found = grad(m.layer(x).pow(2).mean(), list(weights.values()), create_graph=True)
    changed = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), found, strict=True)}
    return functional_call(m.layer, changed, (x,))


def class_activation(m: Program, x: Tensor) -> Tensor:
    with torch.enable_grad():
        features = m.layer(x.detach().requires_grad_())
        seen: list[Tensor] = []
        handle = features.register_hook(seen.append)
        grad(features.relu().sum(), features)
        handle.remove()
    return (features * seen[0]).relu()


def told_to_require_gradients(m: Program, x: Tensor) -> Tensor:
    if x.sum() > 0:
        x.requires_grad_()
    return m.layer(x) * 2


def counted(run: Callable[..., Any]) -> Callable[..., Any]:
    def counting(m: Program, *arguments: Tensor) -> Any:
        m.calls += 1
        return run(m, *arguments)

    return counting


def with_item(run: Callable[..., Any]) -> Callable[..., Any]:
    def reading(m: Program, x: Tensor) -> Any:
        scale = round(x.detach().abs().max().item(), 3)
        return pytree.tree_map(lambda one: one * scale, run(m, x))

    return reading


def hooked(run: Callable[..., Any]) -> Callable[..., Any]:
    """As a counter, by a hook of the layer."""

    def hooking(m: Program, x: Tensor) -> Any:
        handle = m.layer.register_forward_hook(lambda *_: setattr(m, "calls", m.calls + 1))
        try:
            return run(m, x)
        finally:
            handle.remove()

    return hooking


def catching(m: Program, x: Tensor) -> Any:
    try:
        return asserting(m, x)
    except AssertionError as error:
        return m.layer(x) * len(str(error))


def raising_in_its_midst(m: Program, x: Tensor) -> Any:
    m.mean.mul_(0.5).add_(x.detach().mean())
    if x[0, 0] > 1:
        raise ValueError("too large")
    return m.layer(x) + m.mean


def returning_early(m: Program, x: Tensor) -> Any:
    if x[0, 0] > 0.5:
        return {"first": m.layer(x), "size": x.size()}
    return (m.layer(x), None) if x[0, 1] > 0 else [m.layer(x).relu()]


def writing(m: Program, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.add_(1)
    y.mul_(0.5)
    return m.layer(x + y), x[1:] * 2


def selecting(m: Program, x: Tensor) -> Tensor:
    (chosen,) = torch.where(x[:, 0] > 0)
    result: Tensor = m.layer(x[x[:, 1] > 0]).sum() + m.layer(x).index_fill(0, chosen, 3.0)
    return result


def factorised(m: Program, x: Tensor) -> Tensor:
    k = x[:4] @ x[:4].T - torch.eye(4, dtype=x.dtype)
    try:
        k = torch.linalg.cholesky(k)
    except torch.linalg.LinAlgError:
        k = torch.linalg.cholesky(k + 10 * torch.eye(4, dtype=x.dtype))
    result: Tensor = m.layer(k)
    return result


def numpy(function: Callable[[Any], Any], dtype: torch.dtype = torch.float64, scale: float = 1.0) -> Callable[..., Any]:
    """A program with a function of NumPy on the argument's numbers in a type."""
    return lambda m, x: (m.layer(x), torch.as_tensor(function((x.detach() * scale).to(dtype).numpy())))


PROGRAMS: dict[str, Callable[..., Any]] = {
    "forces": forces,
    "smooth forces": smooth_forces,
    "gradient penalty": gradient_penalty,
    "second derivatives": second_derivatives,
    "inner step": inner_step,
    "inner step, counted": counted(inner_step),
    "class activation": class_activation,
    **{f"{run.__name__}, {by.__name__}": by(run)
       for run in (gradient_penalty, second_derivatives, class_activation) for by in (counted, with_item, hooked)},
    "requires_grad_ after a branch": told_to_require_gradients,
    "requires_grad_": lambda m, x: m.layer(x.requires_grad_()),
    "a gradient within": lambda m, x: m.layer(x) + torch.func.grad(lambda v: m.layer(v).pow(2).sum())(x),
    "cbrt": numpy(np.cbrt),
    "clip of int8": numpy(lambda a: np.clip(a, -1000, 1000), torch.int8, 50),
    "cumsum of int8": numpy(lambda a: np.cumsum(a, 1), torch.int8, 50),
    "square of int32": numpy(np.square, torch.int32, 1e5),
    "percentile": lambda m, x: m.layer(x) * float(np.percentile(x.detach().numpy(), 90)),
    "assert": asserting,
    "an AssertionError that is caught": catching,
    "an error in its midst": raising_in_its_midst,
    "an operator's error that is caught": factorised,
    "Tensor of a size": lambda m, x: m.layer(x) + 0 * torch.Tensor(x.size()).numel() + len(torch.Tensor(x.size())),
    "a size": lambda m, x: (m.layer(x), x.size()),
    "early returns": returning_early,
    "cond": lambda m, x: torch.cond(x.sum() > 0, lambda v: m.layer(v), lambda v: -m.layer(v), (x,)),
    "where": selecting,
    "mask": lambda m, x: m.layer(x).masked_fill(m.layer(x) > 0, 1.5)[x[:, 0] > -9],
    "gradients in .grad": lambda m, x: (torch.is_grad_enabled() and m.layer(x).sum().backward(), m.layer(x))[1],
    "hook on a gradient": lambda m, x: (y := m.layer(x), y.requires_grad and y.register_hook(lambda g: g * 2))[0],
    "seeded": lambda m, x: (torch.manual_seed(3), dropout(m.layer(x)))[1],
    "branch by chance": lambda m, x: m.layer(x) if torch.rand(()) < 0.5 else m.layer(x * 2),
    "branch by Python's chance": lambda m, x: m.layer(x) * random.choice([1, 2]),
    "by NumPy's chance": lambda m, x: m.layer(x) * np.random.rand(),
}  # fmt: skip


@pytest.mark.parametrize("compare", [infers_as_eager, trains_as_eager])
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_program_does_is_what_eager_does(name: str, compare: Callable[..., list[str]]) -> None:
    torch.manual_seed(0)
    states = compare(Program(PROGRAMS[name]), rows)
    assert "default" not in states[-1] or len(states[-1]) > len("'default'"), "what PyTorch runs has a reason"


@pytest.mark.parametrize("compare", [infers_as_eager, trains_as_eager])
def test_arguments_that_are_written_to_may_share_memory_later(compare: Callable[..., list[str]]) -> None:
    compare(Program(writing), pairs)


HOOKS: dict[str, Callable[[nn.Module], object]] = {
    "forward": lambda m: m.register_forward_hook(lambda module, given, found: found * 2),
    "forward, that sees": lambda m: m.register_forward_hook(lambda *_: None),
    "forward, before": lambda m: m.register_forward_pre_hook(lambda module, given: (given[0] * 2,)),
    "forward, of named ones": lambda m: m.register_forward_hook(lambda *given: given[-1] + 1, with_kwargs=True),
    "backward": lambda m: m.register_full_backward_hook(lambda module, inner, outer: (inner[0] * 2,)),
    "backward, before": lambda m: m.register_full_backward_pre_hook(lambda module, outer: (outer[0] * 2,)),
    "of a gradient": lambda m: m[0].weight.register_hook(lambda gradient: gradient * 2),
    "of an added gradient": lambda m: m[0].weight.register_post_accumulate_grad_hook(
        lambda p: p.grad.clamp_(-0.1, 0.1)
    ),
}


@pytest.mark.parametrize("compare", [infers_as_eager, trains_as_eager])
@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_are_called_and_told_from_the_first_call_on(kind: str, compare: Callable[..., list[str]]) -> None:
    def layers() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    class Hooked(Program):
        def __deepcopy__(self, _: object) -> Hooked:
            other = hooked_one()
            other.load_state_dict(self.state_dict())
            return other

    def hooked_one() -> Hooked:
        made = Hooked(lambda m, x: m.layer(x), layers)
        HOOKS[kind](made.layer)
        return made

    states = compare(hooked_one(), rows)
    assert all(
        "there are hooks on" in state and 'torch.compile(model, backend="threadcast")' in state for state in states
    )


def exported() -> nn.Module:
    module: nn.Module = torch.export.export(nn.Linear(4, 4).eval(), (torch.ones(5, 4),)).module()
    return module


def raising(_: Tensor) -> Tensor:
    raise KeyError("own")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_reports_tell_the_state_and_the_reason_from_the_first_call_on() -> None:
    x = torch.ones(5, 4)
    with closing(threadcast.optimize(nn.Linear(4, 4).eval(), backends=False)) as call:
        assert str(call.reports[0]) == "not called yet"
        assert repr(call) == "OptimizedCall(inference of Linear: not called yet)"
        call(x)
        assert (call.reports[0].runs, call.reports[0].reason) == ("measuring", "")
    with closing(threadcast.optimize(exported(), backends=False)) as call:
        call(x)
        assert call.reports[0].runs == "default"
        assert call.reports[0].reason in repr(call)
        assert "there are hooks on module GraphModule" in call.reports[0].reason
    with closing(threadcast.optimize(raising, backends=False)) as call:
        with pytest.raises(KeyError, match="own"):
            call(x)
        assert call.reports[0].reason.startswith("cannot capture: KeyError")


@pytest.mark.parametrize("hooks", [False, True])
def test_reports_tell_the_reason_of_a_step_that_was_prepared(hooks: bool) -> None:
    model, x = nn.Linear(4, 4), torch.ones(5, 4)
    if hooks:
        model.register_full_backward_hook(lambda *_: None)
    with closing(threadcast.optimize_training(model, mse_loss, torch.optim.SGD(model.parameters()), x, x)) as step:
        assert ("hooks on module Linear" in step.reports[0].reason) is hooks

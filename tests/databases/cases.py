"""What is run of PyTorch's databases: calls and training steps, each known by a name that stays the same."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.utils import _pytree as pytree

from tests.databases.networks import Branches, OddParameters
from tests.databases.pytorch_databases import DTYPES, TRAINABLE, module_db, op_db, optim_db, optimizer_inputs

Database = Literal["op_db", "module_db", "optim_db"]
DATABASES: tuple[Database, ...] = ("op_db", "module_db", "optim_db")

UNDEFINED = ("empty", "resize_", "resize_as_")
"""Operators that return memory as they find it, by the beginning of their names: only shapes can be compared."""

OPTIMIZERS: tuple[Callable[..., Optimizer], ...] = (
    partial(SGD, lr=0.1, momentum=0.9), partial(AdamW, lr=0.05), partial(SGD, lr=0.1, weight_decay=0.1),
    partial(Adam, lr=0.05, weight_decay=0.1),
)  # fmt: skip
"""What operators and modules are trained by, in turn. Rates are high enough for bfloat16 to show each step."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of `function` on tensors; `defined` is False where it returns memory as it finds it."""

    function: Callable[..., Any]
    tensors: list[Tensor]
    defined: bool = True


@dataclass(frozen=True, slots=True)
class Training:
    """A model with its optimizer, to be trained on one batch. The loss takes what the model returns, and a target."""

    model: nn.Module
    optimizer: Callable[[list[nn.Parameter]], Optimizer]
    inputs: list[Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One call or training of an entry; `build` makes it, the same each time."""

    database: Database
    name: str
    build: Callable[[], Call | Training | None]
    """None where the entry has no such example after all."""

    @property
    def seed(self) -> int:
        """A number that is this case's own, in every process."""
        return zlib.crc32(self.name.encode())


def cases(database: Database, *, samples: int) -> Iterator[Case]:
    """All cases of one database, with up to so many examples of each entry and type."""
    yield from {"op_db": _operators, "module_db": _modules, "optim_db": _optimizers}[database](samples)


def spread(database: Database) -> Iterator[Case]:
    """A part of the cases: of an operator one, of a module and an optimizer one of every way to run it.

    Which of its types, and which way to run an operator, is chosen by the entry's name.
    """
    by_entry: dict[tuple[str, str], list[Case]] = {}
    for case in cases(database, samples=2 if database == "optim_db" else 1):
        entry, way, *_ = case.name.split()
        by_entry.setdefault((entry, "" if database == "op_db" else way), []).append(case)
    for (entry, what), of_entry in by_entry.items():
        yield of_entry[zlib.crc32(f"{entry} {what}".encode()) % len(of_entry)]


def loss_of(outputs: Any, _target: Any) -> Tensor:
    """A weighted sum of all numbers that a model returns, so that each counts differently.

    All weights are positive: where they cancel out, as in the gradient of a bias, only rounding errors are left, and
    Adam makes full steps of these.
    """
    total: Tensor | None = None
    for leaf in pytree.tree_leaves(outputs):
        if not isinstance(leaf, Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
            continue
        numbers = torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf
        weights = 1.5 + torch.cos(torch.arange(numbers.numel(), dtype=torch.float32)).reshape(numbers.shape)
        part = (numbers * weights.to(numbers.dtype)).sum()
        total = part if total is None else total + part.to(total.dtype)
    if total is None:
        raise TypeError("nothing that is returned has a gradient")
    return total


def _operators(samples: int) -> Iterator[Case]:
    for info in op_db:
        name = info.name + (f".{info.variant_test_name}" if info.variant_test_name else "")
        supported = info.supported_dtypes("cpu")
        backward = info.supported_backward_dtypes("cpu") if info.supports_autograd else ()
        for dtype in (dtype for dtype in DTYPES if dtype in supported):
            kind = str(dtype).removeprefix("torch.")
            for number in range(samples):
                yield Case("op_db", f"{name} call {kind} {number}", partial(_operator_call, info, dtype, number, False))
            if info.inplace_variant is not None:
                build = partial(_operator_call, info, dtype, 0, True)
                yield Case("op_db", f"{name} in-place {kind} 0", build)
            if dtype in backward and (dtype in TRAINABLE or dtype.is_complex):
                for number in range(max(samples // 2, 1)):
                    yield Case(
                        "op_db", f"{name} train {kind} {number}", partial(_operator_training, info, dtype, number)
                    )


def _sample(info: Any, dtype: torch.dtype, number: int, *, requires_grad: bool) -> Any:
    """Example 0 is the first, others are spread over the rest."""
    torch.manual_seed(0)
    found = islice(info.sample_inputs("cpu", dtype, requires_grad=requires_grad), number * 7, None)
    return next(iter(found), None)


def _operator_call(info: Any, dtype: torch.dtype, number: int, in_place: bool) -> Call | None:
    sample = _sample(info, dtype, number, requires_grad=False)
    if sample is None:
        return None
    leaves, structure = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    target = info.inplace_variant if in_place else info.op

    def function(*tensors: Tensor) -> Any:
        given = list(leaves)
        for i, tensor in zip(at, tensors, strict=True):
            given[i] = tensor
        first, args, kwargs = pytree.tree_unflatten(given, structure)
        return target(first, *args, **kwargs)

    bare = info.name.split(".")[-1].removeprefix("new_")
    return Call(function, [leaves[i] for i in at], not bare.startswith(UNDEFINED))


def _operator_training(info: Any, dtype: torch.dtype, number: int) -> Training | None:
    sample = _sample(info, dtype, number, requires_grad=True)
    if sample is None:
        return None
    given = (sample.input, sample.args, sample.kwargs)
    return _trained(_Calling(info.op, given, sample.output_process_fn_grad), [], f"{info.name} {dtype} {number}")


def _trained(model: nn.Module, inputs: list[Any], name: str) -> Training | None:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        return None
    return Training(model, OPTIMIZERS[zlib.crc32(name.encode()) % len(OPTIMIZERS)], inputs)


class _Calling(nn.Module):
    """Calls an operator or a module on given arguments, of which those that need a gradient are parameters."""

    def __init__(self, target: Callable[..., Any], arguments: Any, after: Callable[[Any], Any] = lambda x: x) -> None:
        super().__init__()
        self.called: list[Callable[..., Any]] | None = None if isinstance(target, nn.Module) else [target]
        if isinstance(target, nn.Module):
            self.module = target
        leaves, self.structure = pytree.tree_flatten(arguments)
        self.after = after
        self.names: list[str | None] = []
        self.constants = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        for i, leaf in enumerate(leaves):
            self.names.append(f"value{i}" if isinstance(leaf, Tensor) else None)
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                self.register_parameter(f"value{i}", nn.Parameter(leaf.detach().clone()))
            elif isinstance(leaf, Tensor):
                self.register_buffer(f"value{i}", leaf.detach().clone())

    def forward(self) -> Any:
        leaves = [
            constant if name is None else getattr(self, name)
            for name, constant in zip(self.names, self.constants, strict=True)
        ]
        first, args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        target = self.module if self.called is None else self.called[0]
        return self.after(target(first, *args, **kwargs) if first is not _NOTHING else target(*args, **kwargs))


_NOTHING = "no first argument"


def _modules(samples: int) -> Iterator[Case]:
    for info in module_db:
        for dtype in (*TRAINABLE, torch.complex64):
            if dtype not in info.dtypes and not (dtype in TRAINABLE and torch.float32 in info.dtypes):
                continue
            kind = str(dtype).removeprefix("torch.")
            for number in range(samples):
                for what in ("call", "train"):
                    build = partial(_module, info, dtype, number, what == "train")
                    yield Case("module_db", f"{info.name} {what} {kind} {number}", build)


def _module(info: Any, dtype: torch.dtype, number: int, train: bool) -> Call | Training | None:
    torch.manual_seed(0)
    made = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=train, training=train)
    example = next(iter(islice(made, number * 3, None)), None)
    if example is None or example.forward_input is None:
        return None
    constructor = example.constructor_input
    module = info.module_cls(*constructor.args, **constructor.kwargs).to(dtype).train(train)
    if info.is_lazy:  # the first call gives its parameters their shapes
        module(*example.forward_input.args, **example.forward_input.kwargs)
    arguments = (_NOTHING, tuple(example.forward_input.args), dict(example.forward_input.kwargs))
    model = _Calling(module, arguments)
    if train:
        return _trained(model, [], f"{info.name} {dtype} {number}")
    return Call(model, [])


def _optimizers(samples: int) -> Iterator[Case]:
    for info in optim_db:
        for dtype in (*TRAINABLE, torch.complex64):
            kind = str(dtype).removeprefix("torch.")
            for number, example in enumerate(optimizer_inputs("cpu", dtype, info)):
                for network in (Branches, OddParameters)[: max(1, min(samples, 2))]:
                    settings = " ".join(f"{name}={value}" for name, value in example.kwargs.items()) or "defaults"
                    name = f"{info.optim_cls.__name__} {number} {network.__name__} {kind} ({settings})"
                    yield Case("optim_db", name, partial(_optimizer, info.optim_cls, example.kwargs, dtype, network))


def _optimizer(
    kind: type[Optimizer], settings: dict[str, Any], dtype: torch.dtype, network: type[nn.Module]
) -> Training:
    if kind is SGD and settings.get("fused") and dtype.itemsize == 2 and not _fused_sgd_moves(dtype):
        raise RuntimeError("PyTorch's fused SGD reads beyond its momentum in half precision (pytorch issue 191763)")
    torch.manual_seed(0)
    model = network().to(dtype)
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    given = {"lr": 0.05, **settings}

    def make(parameters: Sequence[nn.Parameter]) -> Optimizer:
        return kind(parameters, **{name: v.clone() if isinstance(v, Tensor) else v for name, v in given.items()})

    return Training(model, make, [x])


@cache
def _fused_sgd_moves(dtype: torch.dtype) -> bool:
    """Whether this PyTorch's fused SGD moves parameters that fill its vectors."""
    parameter = nn.Parameter(torch.zeros(256, dtype=dtype))
    parameter.grad = torch.ones_like(parameter)
    SGD([parameter], lr=1.0, fused=True).step()
    return bool((parameter == -1).all())

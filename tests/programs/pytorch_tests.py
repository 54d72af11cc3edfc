"""Programs of PyTorch's own tests of `torch.compile`: what these compile or pass to their checks, with its inputs.

The tests come from a clone of PyTorch's repository, which is not shipped. They are run in eager PyTorch, and what they
would have compiled is noted. Of names that the installed PyTorch lacks, as the clone is newer, only the tests that
need them are lost.
"""

from __future__ import annotations

import ast
import copy
import sys
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.databases import pytorch_databases  # noqa: F401 - stands in for `expecttest`

MOST_BYTES = 64 << 20
"""Programs with larger inputs are left out. A convention."""
_LEFT_OUT = "aoti", "large", "profiler", "multi_gpu"
"""In the names of tests that compile ahead of time, by Inductor itself, that take too much memory, or that are of other
things than results."""
MOST_OF_A_TEST = 12
"""Programs of one test that are taken; some tests have hundreds that differ in a type. A convention."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file of PyTorch's repository, its class of tests, and the method by which these check a program."""

    path: str
    tests: str
    check: str


SOURCES = (
    Source("test/inductor/test_torchinductor.py", "CommonTemplate", "common"),
    Source("test/inductor/test_cpu_repro.py", "CPUReproTests", "common"),
    Source("test/functorch/test_aotdispatch.py", "TestAOTAutograd", "verify_aot_autograd"),
)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one call; gradients are those of `leaves`."""

    given: list[Any]
    named: dict[str, Any]
    leaves: list[Tensor]


@dataclass(frozen=True, slots=True)
class Program:
    """A function with what makes its arguments, the same each time; `gradients` says whether they are recorded."""

    name: str
    function: Callable[..., Any]
    make: Callable[[], Arguments]
    gradients: bool = True

    def fresh_function(self) -> Callable[..., Any]:
        """The function; a module as it was when the program was noted."""
        return copy.deepcopy(self.function) if isinstance(self.function, nn.Module) else self.function


def programs(clone: Path, source: Source, *, only: str = "") -> Iterator[Program]:
    """All programs of a class of tests whose names contain `only`. FileNotFoundError without the file in the clone."""
    module = _loaded(clone, source.path)
    tests = getattr(module, source.tests)
    noted = _Noted()
    bases = (tests,) if issubclass(tests, unittest.TestCase) else (tests, module.TestCase)
    kind = type("Noting", bases, {source.check: noted.checked, "device": "cpu"})
    tests_of_results = sorted(
        name for name in dir(kind) if name.startswith("test") and not any(part in name for part in _LEFT_OUT)
    )
    for test in tests_of_results:
        noted.begin(f"{Path(source.path).stem} {test}")
        with ExitStack() as stack:
            stack.enter_context(redirect_stdout(StringIO()))
            stack.enter_context(redirect_stderr(StringIO()))
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            for target, name in ((torch, "compile"), (torch._dynamo, "optimize")):
                stack.enter_context(patch.object(target, name, noted.compiler(name)))
            try:
                torch.manual_seed(0)
                case = kind(test)
                case.setUp()
                getattr(case, test)()
            except Exception:  # noqa: BLE001 - a test of what only Inductor does, or that is not for this machine
                pass
            finally:
                torch.set_grad_enabled(True)
                torch.set_default_dtype(torch.float32)
        yield from (program for program in noted.programs if only in program.name)


class _Noted:
    """Takes note of what a test checks or compiles."""

    def __init__(self) -> None:
        self.programs: list[Program] = []
        self._test = ""

    def begin(self, test: str) -> None:
        """Forget what was noted, and begin with another test."""
        self.programs, self._test = [], test

    def add(self, function: Callable[..., Any], make: Callable[[], Arguments]) -> None:
        """Note a program, unless the test has many."""
        if len(self.programs) >= MOST_OF_A_TEST:
            return
        kept = copy.deepcopy(function) if isinstance(function, nn.Module) else function
        name = f"{self._test} {len(self.programs)}"
        self.programs.append(Program(name, kept, make, torch.is_grad_enabled()))

    @property
    def checked(self) -> Callable[..., None]:
        """The method by which a test checks a program."""

        def check(
            _: Any, function: Callable[..., Any], inputs: Any, kwargs: Any = None, *, test_mutation: bool = False,
            **__: Any,
        ) -> None:  # fmt: skip
            if callable(inputs):
                self.add(function, partial(_of_maker, inputs))
            else:
                make = _maker(list(inputs), dict(kwargs or {}), changed=test_mutation)
                if make is not None:
                    self.add(function, make)

        return check

    def compiler(self, name: str) -> Callable[..., Any]:
        """What stands for `torch.compile` or `torch._dynamo.optimize` (`name`)."""

        def compiled(function: Any) -> Any:
            def call(*given: Any, **named: Any) -> Any:
                if (make := _maker(list(given), named)) is not None:
                    self.add(function, make)
                return function(*given, **named)

            if isinstance(function, nn.Module):
                call.__dict__["_orig_mod"] = function
            return call

        if name == "optimize":
            return lambda *_, **__: compiled
        return lambda model=None, **_: compiled if model is None else compiled(model)


def _of_maker(make: Callable[[], Sequence[Any]]) -> Arguments:
    """The arguments of a maker of (what gradients are of, what is passed)."""
    leaves, given = make()
    return Arguments(list(given), {}, [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad])


def _maker(given: list[Any], named: dict[str, Any], *, changed: bool = False) -> Callable[[], Arguments] | None:
    """What makes copies of arguments as they are now; None where they cannot be copied, or are too large.

    With `changed` the function gets tensors that were computed from its inputs, so that it may write to them.
    """
    values = pytree.tree_leaves((given, named))
    size = sum(value.numel() * value.element_size() for value in values if isinstance(value, Tensor))
    if size > MOST_BYTES or any(isinstance(value, Tensor) and value.device.type != "cpu" for value in values):
        return None
    try:
        kept = _copied((given, named))
    except Exception:  # noqa: BLE001 - whatever is no plain value
        return None

    def make() -> Arguments:
        found, names = _copied(kept)
        leaves = [
            value for value in pytree.tree_leaves((found, names)) if isinstance(value, Tensor) and value.requires_grad
        ]
        if changed:
            found = [value.add(1) if isinstance(value, Tensor) else value for value in found]
        return Arguments(found, names, list({id(leaf): leaf for leaf in leaves}.values()))

    return make


def _copied(values: Any) -> Any:
    """Copies without a history; tensors that share memory or are the same do and are so in the copy."""
    leaves, structure = pytree.tree_flatten(values)
    memory: dict[int, Any] = {}
    copies: dict[int, Any] = {}
    for leaf in leaves:
        if id(leaf) in copies:
            continue
        if isinstance(leaf, Tensor):
            parameter = isinstance(leaf, nn.Parameter)
            found = copy.deepcopy(leaf.detach(), memory).requires_grad_(leaf.requires_grad)
            copies[id(leaf)] = nn.Parameter(found.detach(), leaf.requires_grad) if parameter else found
        else:
            copies[id(leaf)] = copy.deepcopy(leaf, memory)
    return pytree.tree_unflatten([copies[id(leaf)] for leaf in leaves], structure)


def _loaded(clone: Path, path: str) -> ModuleType:
    """A file of tests as a module; what it imports and is not there is `_Absent`."""
    name = Path(path).stem
    if (found := sys.modules.get(name)) is not None:
        return found
    file = clone / path
    tree = ast.parse(file.read_text(), str(file))
    body: list[ast.stmt] = []
    for statement in tree.body:
        body += _tolerant(statement) if isinstance(statement, ast.ImportFrom) and not statement.level else [statement]
    tree.body = body
    module = ModuleType(name)
    vars(module).update(__file__=str(file), _absent=_Absent())
    sys.modules[name] = module
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(ast.fix_missing_locations(tree), str(file), "exec"), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _tolerant(statement: ast.ImportFrom) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    for alias in statement.names:
        bound = alias.asname or alias.name
        text = f"try:\n from {statement.module} import {alias.name} as {bound}\nexcept ImportError:\n {bound} = _absent"
        found += [statement] if alias.name == "*" or statement.module == "__future__" else ast.parse(text).body
    return found


class _Absent:
    """Stands for a name that this PyTorch lacks: as a decorator it leaves what it decorates, and it is false."""

    def __call__(self, *given: Any, **_: Any) -> Any:
        return given[0] if len(given) == 1 and isinstance(given[0], FunctionType | type) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __bool__(self) -> bool:
        return False

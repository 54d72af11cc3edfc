"""A network named on the command line: a built-in one, or a function in a user's own file or package."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from threadcast.core.arguments import did_you_mean
from threadcast.core.errors import InvalidInput, NetworkError, NotFound, ThreadcastError
from threadcast.core.printable import printable
from threadcast.networks.registry import load, seeded
from threadcast.networks.workload import ALLOWED_FORMS, Workload, as_workload


def load_spec(
    spec: str,
    *,
    size: str | None = None,
    batch: int | None = None,
    side: int | None = None,
    steps: int | None = None,
    seed: int = 0,
) -> Workload:
    """Load "resnet18", "my_file.py:function" or "package.module:function".

    A user's function takes no arguments and returns `(model, inputs)`, `(model, inputs, target, loss)` or a
    Workload; it runs with torch seeded by `seed`, and may import the modules beside its file. The size of a
    built-in network defaults to "tiny"; sizes and overrides are for registered networks only.

    Raises NotFound for a name, file, module or function that does not exist, NetworkError when the user's
    code raises or a built-in network is too large, InvalidInput when it returns anything else or an
    argument does not apply.
    """
    if ":" not in spec:
        if spec.endswith(".py"):
            raise without_function(spec)
        try:
            return load(spec, size or "tiny", batch=batch, side=side, steps=steps, seed=seed)
        except RuntimeError as error:  # PyTorch's, as where memory does not suffice
            raise NetworkError(f"{spec} cannot be built: {_said(error)}") from error
    overrides = {"size": size, "batch": batch, "side": side, "steps": steps}
    for option, value in overrides.items():
        if value is not None:
            raise InvalidInput(f"{option}={value!r} applies to registered networks only; set it inside {spec}")
    where, _, function_name = spec.rpartition(":")
    if not where or not function_name:
        raise InvalidInput(f"{spec!r} must be a network's name, file.py:function or package.module:function")
    is_file = where.endswith(".py") or "/" in where
    folder = Path(os.path.expanduser(where)).resolve().parent if is_file else Path.cwd()
    with _importable(folder), seeded(seed):
        module = _import_file(where) if is_file else _import_module(where)
        returned = _call(_function(module, function_name, spec), spec)
    return as_workload(returned, source=spec, name=printable(spec), size="own")


def without_function(path: str) -> InvalidInput:
    """Return the error for a Python file that was named without a function; it lists the functions of the file.

    NotFound where there is no such file, NetworkError where it cannot be imported.
    """
    with _importable(Path(os.path.expanduser(path)).resolve().parent):
        own = _functions(_import_file(path))
    return InvalidInput(f"{path!r} names no function; add it, as {path}:FUNCTION; {_listed(own)}")


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let imports look in `folder` first inside the block, as `python folder/file.py` does."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _import_file(where: str) -> ModuleType:
    path = Path(os.path.expanduser(where)).resolve()
    if not path.is_file():
        raise NotFound(f"no file {where!r} in {Path.cwd()}; give the path of a Python file, as my_file.py:build")
    name = f"threadcast_own_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    if module_spec is None or module_spec.loader is None:
        raise InvalidInput(f"{where!r} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(module_spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up there
    try:
        module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise NetworkError(f"{where} cannot be imported: {_said(error)}") from error
    return module


def _import_module(where: str) -> ModuleType:
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{where}.".startswith(f"{error.name}."):
            raise NotFound(
                f"no module {where!r} in {Path.cwd()} or among the installed packages; "
                f"for a file write {where.replace('.', '/')}.py:function"
            ) from None
        raise NetworkError(f"{where} cannot be imported: {_said(error)}") from error
    except (Exception, SystemExit) as error:
        raise NetworkError(f"{where} cannot be imported: {_said(error)}") from error


def _function(module: ModuleType, name: str, spec: str) -> Callable[[], Any]:
    from torch import nn

    if not hasattr(module, name):
        own = _functions(module)
        raise NotFound(f"{spec} has no {name!r}; {did_you_mean(name, own)}{_listed(own)}")
    function = getattr(module, name)
    if isinstance(function, type | nn.Module) or not callable(function):
        kind = "a class" if isinstance(function, type) else f"a {type(function).__name__}"
        raise InvalidInput(f"{spec} is {kind}; name a function that takes no arguments and returns {ALLOWED_FORMS}")
    required = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if required:
        raise InvalidInput(f"{spec} needs the arguments {', '.join(required)}; it must take none, or have defaults")
    found: Callable[[], Any] = function
    return found


def _functions(module: ModuleType) -> list[str]:
    """The public functions that the module defines."""
    return [
        key
        for key, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not key.startswith("_")
    ]


def _listed(functions: list[str]) -> str:
    return f"functions there: {', '.join(functions) or 'none'}"


def _call(function: Callable[[], Any], spec: str) -> object:
    try:
        return function()
    except ThreadcastError:
        raise  # says already what was wrong, as when the function itself calls load()
    except (Exception, SystemExit) as error:
        raise NetworkError(f"{spec} raised {_said(error)}; run it by itself to see where") from error


def _said(error: BaseException) -> str:
    first, *_ = str(error).splitlines() or [""]  # PyTorch may add where in C++ it was
    return f"{type(error).__name__}: {first}"

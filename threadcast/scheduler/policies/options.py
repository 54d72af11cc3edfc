"""Checks a policy's options, from a command line or a request, against the types in its signature."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from threadcast.core.errors import InvalidInput

_NAMES: dict[object, str] = {int: "a whole number", float: "a number", bool: "true or false", NoneType: "none"}


def check_options(policy: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise InvalidInput for the first option that is not of the type that `factory` declares for it.

    Whole numbers, numbers (never NaN), booleans, None and collections of these are checked. A parameter with another
    type takes any object except a number, text or list; one without a type takes everything.
    """
    try:
        declared = inspect.signature(factory, eval_str=True).parameters
    except NameError:  # types that its module imports for type checkers only: it has to check for itself
        return
    for name, value in options.items():
        hint = declared[name].annotation if name in declared else object
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if not any(_fits(value, kind) for kind in kinds):
            allowed = " or ".join(map(_described, kinds))
            raise InvalidInput(f"policy {policy!r}: {name}={value!r} must be {allowed}")


def _fits(value: Any, kind: Any) -> bool:
    number = isinstance(value, Real) and not isinstance(value, bool)
    if kind is int:
        return number and isinstance(value, Integral)
    if kind is float:
        return number and not math.isnan(value)
    if kind in (bool, NoneType):
        return isinstance(value, kind)
    if _is_collection(kind):
        items = get_args(kind)[:1] or (object,)
        return isinstance(value, Collection) and not isinstance(value, str) and all(_fits(v, items[0]) for v in value)
    return kind in (object, Any, inspect.Parameter.empty) or not isinstance(value, Real | str | list)


def _described(kind: Any) -> str:
    if _is_collection(kind):
        return "several of " + " or ".join(_described(item) for item in get_args(kind)[:1] or (object,))
    return _NAMES.get(kind) or f"an object: {getattr(kind, '__name__', kind)}"


def _is_collection(kind: Any) -> bool:
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Collection)

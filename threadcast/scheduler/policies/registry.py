"""Policies by name: the built-in ones and those of third parties."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from threadcast.core.by_name import ByName, check_importable, imported
from threadcast.core.errors import InvalidInput
from threadcast.scheduler.policies.options import check_options
from threadcast.scheduler.problem import Policy, Problem

Factory = Callable[..., Policy]
"""Called as `factory(problem, **options)`."""

PLANNERS = ("auto", "search")
"""Names of the plans that the planner itself finds (`planner.plan`), which it takes where it takes a policy's name."""

_factories: ByName[Factory | str] = ByName("policy")


def register(name: str, factory: Factory | str) -> None:
    """Make `create(name, ...)` call `factory`: a callable, or a text "module:name" that is imported at first use.

    InvalidInput for an empty name, and for one that is registered with another factory.
    """
    check_importable("factory", factory)
    _factories.add(name, factory)


def names() -> tuple[str, ...]:
    """Return the registered names, in order of registration."""
    return tuple(_factories)


def plan_names() -> tuple[str, ...]:
    """Return every name by which a plan can be made: those of the planner itself, and the registered ones."""
    return (*PLANNERS, *names())


def create(name: str, problem: Problem, /, **options: Any) -> Policy:
    """Return the policy of this name for `problem`; NotFound for an unknown name, InvalidInput for a wrong option."""
    check_option_names(name, options)
    factory = _resolve(name)
    check_options(name, factory, options)
    return factory(problem, **options)


def check_option_names(name: str, options: Mapping[str, Any]) -> None:
    """Raise InvalidInput where the policy of this name has not all of these options, or needs others too."""
    try:
        inspect.Signature(_parameters(name)).bind(**options)
    except TypeError as error:
        allowed = ", ".join(options_of(name)) or "none"
        raise InvalidInput(f"policy {name!r}: {error}; its options are: {allowed}") from error


def options_of(name: str) -> tuple[str, ...]:
    """Return the names of the options that `create` takes for a registered policy."""
    return tuple(parameter.name for parameter in _parameters(name))


def without_options() -> tuple[str, ...]:
    """Return the names of the policies that need no options, in order of registration."""
    return tuple(name for name in _factories if all(_is_optional(p) for p in _parameters(name)))


def check_name(name: str, *others: str) -> None:
    """Raise NotFound if `name` is neither registered nor one of `others`, further names that the caller accepts."""
    if name not in others:
        _factories.find(name, *others)


def _parameters(name: str) -> list[inspect.Parameter]:
    return list(inspect.signature(_resolve(name)).parameters.values())[1:]


def _is_optional(parameter: inspect.Parameter) -> bool:
    variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return variadic or parameter.default is not parameter.empty


def _resolve(name: str) -> Factory:
    return imported(_factories.find(name))

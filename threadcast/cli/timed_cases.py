"""The option --cases: what is timed without a model that decides it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

if TYPE_CHECKING:
    from threadcast.collector.proposers import FixedProposer

F = TypeVar("F", bound=Callable[..., Any])

FixedCases = int | Literal["all"]


def cases_option(function: F) -> F:
    """Give a command --cases, which it gets as `cases`."""
    return click.option(
        "--cases", metavar="all|N", callback=_fixed_cases,
        help="Time every op at all thread counts and affinities, or at N, evenly spread [default: a model decides].",
    )(function)  # fmt: skip


def either_cases_or_model(cases: FixedCases | None, model: str | None) -> None:
    """UsageError where both are given."""
    if cases is not None and model is not None:
        raise click.UsageError("--cases chooses what is timed without a model; leave out --cases or --model")


def fixed_proposer(cases: FixedCases) -> FixedProposer:
    """What asks for these cases of every op."""
    from threadcast.collector.proposers import EvenlySpread, EveryCase

    return EveryCase() if cases == "all" else EvenlySpread(cases)


def _fixed_cases(context: click.Context, parameter: click.Parameter, value: str | None) -> FixedCases | None:
    if value is None:
        return None
    if value == "all":
        return "all"
    if value.isascii() and value.isdigit() and int(value) > 0:
        return int(value)
    raise click.BadParameter(f"{value!r} must be all or a whole number of at least 1")

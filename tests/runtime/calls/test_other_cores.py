"""While a model has other cores than it was measured on, what follows them runs its calls, or PyTorch does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from threadcast.runtime.calls.fallback import Fallback
from threadcast.runtime.calls.table import CallTable


def runner(*, follows: bool) -> Any:
    """Stands for a `Tuning` of calls that follow other cores, or do not."""
    return SimpleNamespace(follows=follows)


def found_on(found: Any, *, more: bool, unchanged: bool, others: tuple[Any, ...] = ()) -> Any:
    """What runs calls that `found` ran, on more cores or fewer, which have been the same for long or not."""
    cores: Any = SimpleNamespace(has_more=more, unchanged=unchanged)
    table: Any = SimpleNamespace(tunings=[*others, *([found] if hasattr(found, "follows") else [])])
    return CallTable.on_other_cores(table, found, cores)


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("unchanged", [False, True])
def test_what_pytorch_runs_it_runs_on_all_cores(more: bool, unchanged: bool) -> None:
    fallback = Fallback("too short", short=True)
    assert found_on(fallback, more=more, unchanged=unchanged) is fallback


@pytest.mark.parametrize("unchanged", [False, True])
def test_what_follows_the_cores_runs_on_fewer(unchanged: bool) -> None:
    following = runner(follows=True)
    assert found_on(following, more=False, unchanged=unchanged) is following


def test_what_follows_the_cores_runs_on_more_until_these_have_stayed() -> None:
    following = runner(follows=True)
    assert found_on(following, more=True, unchanged=False) is following
    assert found_on(following, more=True, unchanged=True) is None


@pytest.mark.parametrize("found", [None, runner(follows=False)])
def test_pytorch_runs_other_calls_until_all_are_measured_anew(found: Any) -> None:
    meanwhile = found_on(found, more=False, unchanged=False)
    assert isinstance(meanwhile, Fallback)
    assert "other cores" in meanwhile.reason
    assert found_on(found, more=False, unchanged=True) is None


@pytest.mark.parametrize("found", [None, runner(follows=False)])
def test_nothing_is_measured_anew_on_fewer_cores_while_other_calls_follow(found: Any) -> None:
    others = (runner(follows=True),)
    assert isinstance(found_on(found, more=False, unchanged=True, others=others), Fallback)
    assert found_on(found, more=True, unchanged=True, others=others) is None

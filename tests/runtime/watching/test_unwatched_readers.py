"""Values that cannot be watched, which modules hold, refuse a call only where it runs the code that reads them."""

from __future__ import annotations

import itertools
import operator
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from threadcast import optimize
from threadcast.capture.capture import capture_forward
from threadcast.capture.module_values import Unwatchable
from threadcast.capture.python_state import PythonState

TOKENS = itertools.count()
OWN = threading.local()
OWN.factor = 2.0
CHANCE = np.random.RandomState(0)
ALIASED = itertools.count()


def token() -> int:
    return next(TOKENS)


def own() -> float:
    return float(OWN.factor)


def chance() -> float:
    return CHANCE.rand()


def inner() -> int:
    return sum([next(TOKENS) for _ in range(2)])


class Sometimes(nn.Module):
    """Calls `read` where `reads` is set."""

    def __init__(self, read: Callable[[], float] = token, *, reads: bool = False) -> None:
        super().__init__()
        self.read, self.reads = read, reads
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return x + self.read() if self.reads else x


def count() -> int:
    return int(repr(TOKENS).strip("count()"))


@pytest.mark.parametrize("read", [token, own, chance, inner, lambda: token()])
def test_a_call_is_captured_unless_it_runs_the_code_that_reads(read: Callable[[], float]) -> None:
    model, x = Sometimes(read), torch.ones(2, 4)
    captured = capture_forward(model, x)
    with torch.no_grad():
        assert torch.equal(captured.run(x), model(x))
    before, state = count(), CHANCE.get_state()[1].copy()  # type: ignore[index,union-attr]
    model.reads = True
    with pytest.raises(Unwatchable):
        capture_forward(model, x)
    assert count() == before
    assert np.array_equal(CHANCE.get_state()[1], state)  # type: ignore[index]
    assert sys.getprofile() is None


def test_a_call_that_catches_the_refusal_is_refused_all_the_same() -> None:
    def caught() -> float:
        with suppress(Exception):
            return token()
        return 1.0

    before = count()
    with pytest.raises(Unwatchable, match="a count"):
        capture_forward(Sometimes(caught, reads=True), torch.ones(2, 4))
    assert count() == before


def test_a_profiler_of_the_callers_own_goes_on() -> None:
    seen: list[str] = []

    def look(frame: Any, event: str, _: Any) -> None:
        seen.append(event)

    sys.setprofile(look)
    try:
        with pytest.raises(Unwatchable, match="profiler"):
            capture_forward(Sometimes(), torch.ones(2, 4))
        assert sys.getprofile() is look
    finally:
        sys.setprofile(None)
    capture_forward(Sometimes(), torch.ones(2, 4))


def aliased(tokens: Any = ALIASED) -> int:
    return next(tokens)


def of_a_list() -> int:
    return next(LISTED[0])


LISTED = [itertools.count()]
HERE, ASKING = sys.modules[__name__], operator.attrgetter("TOKENS")


def asked() -> int:
    return next(ASKING(HERE))


@pytest.mark.parametrize("read", [aliased, of_a_list, lambda tokens=ALIASED: next(tokens), asked])
def test_values_that_code_has_by_other_ways_are_refused(read: Callable[[], float]) -> None:
    named = ALIASED  # the module's variable alone would be looked at by its readers
    assert PythonState([Sometimes(read), lambda: ALIASED]).unwatchable is not None
    with pytest.raises(Unwatchable):
        capture_forward(Sometimes(read), torch.ones(2, 4))
    assert next(named) >= 0


def test_a_value_of_another_module_is_read_by_its_name() -> None:
    other = ModuleType("other_tokens")
    other.TICKETS = itertools.count()  # type: ignore[attr-defined]
    space: dict[str, Any] = {"other": other}
    exec("def ticket(): return next(other.TICKETS)", space)
    model, x = Sometimes(space["ticket"]), torch.ones(2, 4)
    capture_forward(model, x)
    model.reads = True
    with pytest.raises(Unwatchable):
        capture_forward(model, x)
    assert repr(other.TICKETS) == "count(0)"


@pytest.mark.filterwarnings("ignore:threadcast runs this as PyTorch does")
def test_calls_that_begin_to_read_run_as_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_LEAST_STEP_US", "0")
    model, x = Sometimes().eval(), torch.ones(2, 4)
    fast = optimize(model, backends=False)
    try:
        with torch.no_grad():
            wanted = model.linear(x)
            for _ in range(6):
                torch.testing.assert_close(fast(x), wanted)
            assert len(fast.fastest) == 1
            model.reads = True
            for _ in range(6):
                before = count()
                torch.testing.assert_close(fast(x), wanted + before)
                assert count() == before + 1
            assert "a count" in fast.reports[-1].reason
    finally:
        fast.close()

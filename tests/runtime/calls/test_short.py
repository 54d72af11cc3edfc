"""Calls of microseconds are left alone after a few of them, and say so."""

from __future__ import annotations

import time
import warnings
from contextlib import closing

import pytest
import torch

import threadcast
from threadcast.runtime.calls.learned_calls import LearnedCalls
from threadcast.runtime.calls.short import LONG, NEW_IN_A_ROW, TIMED, ShortCalls
from threadcast.runtime.calls.table import MOST_KINDS
from threadcast.runtime.tuner.tuning import Tuning


def test_a_short_kind_is_timed_and_left_alone() -> None:
    short = ShortCalls(1e-4)
    for seconds in (1e-3, 2e-5, 3e-5):
        assert short.wants("kind", captured_s=None)
        assert short.why_left_alone("kind") is None or seconds == 3e-5
        short.ran("kind", seconds)
    assert not short.wants("kind", captured_s=None)
    assert "takes 20 us" in (short.why_left_alone("kind") or "")
    assert short.wants("another kind", captured_s=None)
    assert short.take("kind") == [1e-3, 2e-5, 3e-5]
    assert short.wants("kind", captured_s=None), "what is forgotten is timed again"


def test_a_slow_first_call_alone_does_not_make_a_kind_long() -> None:
    short = ShortCalls(1e-4)
    short.ran("kind", LONG * 1e-4 * 0.9)
    assert short.wants("kind", captured_s=None)
    short.ran("long", LONG * 1e-4)
    assert not short.wants("long", captured_s=None)
    assert short.why_left_alone("long") is None


def test_an_addition_of_small_tensors_is_left_to_pytorch_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_LEAST_STEP_US", "1e12")
    x = torch.ones(4, 5)
    with closing(threadcast.optimize(torch.add)) as add:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(TIMED):
                assert torch.equal(add(x, x), x + x)
        with pytest.warns(UserWarning, match=r"takes \d+ us, too short to gain"):
            add(x, x)
        (report,) = add.reports
        assert (report.runs, "too short" in report.reason) == ("default", True)
        assert torch.equal(add(x, 2 * x), 3 * x)


def test_a_further_kind_is_captured_once_its_calls_took_as_long_as_the_last_capture() -> None:
    short = ShortCalls(0.0)
    for _ in range(4):
        assert short.wants("kind", captured_s=1.0)
        short.ran("kind", 0.25)
    assert not short.wants("kind", captured_s=1.0)
    assert short.wants("another", captured_s=1.0)


def test_for_each_kind_that_is_left_to_pytorch_others_wait_twice_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_LEAST_STEP_US", "0")
    monkeypatch.setattr(Tuning, "leaves_alone", lambda tuning, looking_s: looking_s > 1e9)
    monkeypatch.setattr(LearnedCalls, "_captured_s", property(lambda calls: 1.0 if len(calls._table) else None))
    ran, waited = ShortCalls.ran, []
    monkeypatch.setattr(ShortCalls, "ran", lambda short, kind, _: ran(short, kind, 1.0))
    with closing(threadcast.optimize(lambda x: x * 2 + 1, backends=False)) as call:
        for size in range(1, 5):
            for number in range(20):
                assert torch.equal(call(torch.ones(size)), torch.full((size,), 3.0))
                if len(call._optimized._table) == size:
                    waited.append(number)
                    break
    assert waited == [0, 2, 4, 8]


def test_of_many_kinds_most_calls_are_left_alone_where_looks_cost() -> None:
    short = ShortCalls(0.0)
    for number in range(NEW_IN_A_ROW):
        assert not short.leaves_alone(number, 1e-4)
        short.ran(number, 1e-3)
    assert short.leaves_alone(0, 1e-4)
    assert not short.leaves_alone(0, 1e-6), "a look that costs nothing"
    for seconds in (0.0, 1e-3):
        short.ran("not timed at first", seconds)
    assert not short.leaves_alone("not timed at first", 1e-6)
    for seconds in (1.0, 1e-3):
        short.ran("slow at first", seconds)
    assert short.leaves_alone("slow at first", 1e-4)


def test_kinds_that_never_come_again_are_forgotten() -> None:
    short = ShortCalls(0.0)
    for number in range(MOST_KINDS + 1):
        short.ran(number, 1.0)
    assert short.wants(0, captured_s=0.0)
    assert not short.wants(1, captured_s=0.0)


def test_most_calls_that_are_too_short_are_not_even_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_LEAST_STEP_US", "1e12")
    layer = torch.nn.Linear(3, 2).eval()
    few, many = torch.randn(1, 3), torch.randn(4, 3)
    with closing(threadcast.optimize(layer)) as call, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(TIMED + 2):
            call(few)
        looked = call._optimized._watch.observe
        looks: list[None] = []
        monkeypatch.setattr(call._optimized._watch, "observe", lambda: [looks.append(None), looked()][1])
        with torch.no_grad():
            for _ in range(50):
                assert torch.equal(call(few), layer(few))
            assert not looks
            layer.weight.mul_(2)
            assert torch.equal(call(few), layer(few))
            layer.weight = torch.nn.Parameter(torch.ones(2, 3))
            assert torch.equal(call(few), layer(few)), "as in PyTorch, whatever the model has become"
            assert torch.equal(call(many), layer(many))
        assert looks, "calls of another kind are looked at"


def test_calls_that_are_each_the_first_of_their_kind_are_left_alone_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_LEAST_STEP_US", "1")
    x = torch.ones(64, 64)
    with closing(threadcast.optimize(lambda x, factor: x * factor)) as call:
        for i in range(1, NEW_IN_A_ROW):
            assert torch.equal(call(x, 0.5 * i), x * (0.5 * i))
        with pytest.warns(UserWarning, match="that came once: each has other shapes, types or numbers"):
            call(x, 0.25)
        assert not call.learning
        assert "came once" in call.reports[0].reason
        assert call._optimized._left_alone.has(((x, 0.1), {}))


def test_what_captures_take_is_counted_whether_they_give_a_graph_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THREADCAST_ENGINE_LEAST_STEP_US", "1")
    monkeypatch.setenv("THREADCAST_ENGINE_TUNING_SHARE", "0.05")

    def slow(x: torch.Tensor) -> torch.Tensor:
        for _ in range(300):
            x = x.sin()
        return x

    for function in (slow, lambda x: slow(x) + x.sum().item()):
        with closing(threadcast.optimize(function)) as call, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            began_s = time.perf_counter()
            for _ in range(TIMED + 1):
                call(torch.ones(8))
            assert call._optimized._budget.spent_s > 0.8 * (time.perf_counter() - began_s)

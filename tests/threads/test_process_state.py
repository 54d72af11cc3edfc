"""The cores that a process is asked to keep to, and the steps that its models make."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from threadcast.threads.process_cores import ProcessCores
from threadcast.threads.step_counter import StepCounter


class Subscriber:
    def __init__(self) -> None:
        self.heard: list[frozenset[int]] = []

    def hear(self, cpus: frozenset[int]) -> None:
        self.heard.append(cpus)


class Pinner:
    def __init__(self, *, pinned: bool) -> None:
        self.pinned, self.pins = pinned, int(pinned)

    def send_home(self, thread: int) -> bool:
        was, self.pinned = self.pinned, False
        return was

    def is_pinned(self, thread: int) -> tuple[bool, int]:
        return self.pinned, self.pins


def test_subscribers_hear_of_every_assignment_while_they_live(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: frozenset[int]) -> None:
        raise ZeroDivisionError("not mine")

    cores, first, second = ProcessCores(), Subscriber(), Subscriber()
    assert cores.cpus is None
    cores.subscribe(first.hear)
    cores.subscribe(second.hear)
    cores.assign([3, 1])
    heard = second.heard
    del second
    cores.assign([1])
    assert cores.cpus == {1}
    assert first.heard == [{1, 3}, {1}]
    assert heard == [{1, 3}]
    last = Subscriber()
    cores.subscribe(fail)
    cores.subscribe(last.hear)
    cores.assign([0])
    assert last.heard == [{0}], "one that raises keeps nobody from hearing"
    assert "not mine" in caplog.text


def test_the_mask_of_a_pinned_thread_is_not_the_programs_own() -> None:
    cores, pinner = ProcessCores(), Pinner(pinned=True)
    assert cores.mask_of(os.getpid()) == os.sched_getaffinity(os.getpid())
    assert not cores.release_pin(os.getpid())
    cores.add_pinner(Pinner(pinned=False))
    cores.add_pinner(pinner)
    assert cores.mask_of(os.getpid()) is None
    assert cores.release_pin(os.getpid())
    assert cores.mask_of(os.getpid()) == os.sched_getaffinity(os.getpid())


def test_a_thread_that_was_pinned_while_its_mask_was_read_has_none() -> None:
    class Busy(Pinner):
        def is_pinned(self, thread: int) -> tuple[bool, int]:
            self.pins += 1
            return False, self.pins

    cores = ProcessCores()
    cores.add_pinner(Busy(pinned=False))
    assert cores.mask_of(os.getpid()) is None


def test_steps_inside_steps_are_told_apart_by_thread_and_failed_ones_are_not_counted() -> None:
    steps = StepCounter()
    with ThreadPoolExecutor(1) as pool, steps.step():
        assert steps.is_counting
        assert not pool.submit(lambda: steps.is_counting).result()
        assert steps.count == 0
    assert not steps.is_counting
    assert steps.count == 1
    with pytest.raises(KeyError), steps.step():
        raise KeyError
    assert (steps.count, steps.is_counting) == (1, False)


class Learner:
    def __init__(self, what: str) -> None:
        self.what = what

    def describe(self) -> str:
        return self.what


def test_what_models_learn_is_told_while_they_live_and_have_something_to_learn() -> None:
    steps, first, second = StepCounter(), Learner("first: 3 calls"), Learner("second: 1 call")
    assert steps.learning == ""
    steps.ask_learning(first.describe)
    steps.ask_learning(second.describe)
    assert steps.learning == "first: 3 calls; second: 1 call"
    first.what = ""
    assert steps.learning == "second: 1 call"
    del second
    assert steps.learning == ""

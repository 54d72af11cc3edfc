"""What several threads store at once: in one transaction, each told what became of its own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from tests.waiting import HANGS_S, eventually
from threadcast.core import Measurement
from threadcast.core.errors import InvalidInput, StoreError
from threadcast.store import Store
from threadcast.store.receipts import Receipt
from threadcast.store.together import Together


class Held:
    """Stores numbers; holds its first call up until released, so that others gather meanwhile."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.calls: list[list[int]] = []
        self.error = error
        self.began, self.go_on = threading.Event(), threading.Event()

    def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.calls.append(list(numbers))
        if len(self.calls) == 1:
            self.began.set()
            assert self.go_on.wait(HANGS_S)
        elif self.error is not None and any(number < 0 for number in numbers):
            raise self.error
        return [10 * number for number in numbers]


def until_waiting(together: Together[int, int], number: int) -> None:
    assert eventually(lambda: len(together._waiting) >= number)


def gathered(held: Held, together: Together[int, int], numbers: Sequence[int], size: int = 1) -> list[object]:
    """What each thread got that added one of these numbers while the call before was held up."""

    def add(number: int) -> object:
        try:
            return together.add(number, size=size)
        except (InvalidInput, StoreError, KeyboardInterrupt) as error:
            return type(error)

    with ThreadPoolExecutor(len(numbers) + 1) as threads:
        first = threads.submit(add, 1)
        assert held.began.wait(HANGS_S)
        others = []
        for number in numbers:
            others.append(threads.submit(add, number))
            until_waiting(together, len(others))
        held.go_on.set()
        return [first.result(), *(other.result() for other in others)]


def test_what_gathers_while_another_is_stored_goes_together_in_order() -> None:
    held = Held()
    assert gathered(held, Together(held, most=10, wait_s=30), [2, 3, 4]) == [10, 20, 30, 40]
    assert held.calls == [[1], [2, 3, 4]]


def test_a_wrong_one_does_not_keep_others_from_being_stored() -> None:
    held = Held(InvalidInput("negative"))
    assert gathered(held, Together(held, most=10, wait_s=30), [2, -3, 4]) == [10, 20, InvalidInput, 40]
    assert held.calls == [[1], [2, -3, 4], [2], [-3], [4]]


def test_all_are_told_that_nothing_can_be_stored() -> None:
    held = Held(StoreError("disk full"))
    assert gathered(held, Together(held, most=10, wait_s=30), [2, -3, 4]) == [10, StoreError, StoreError, StoreError]
    assert held.calls == [[1], [2, -3, 4]]


def test_where_the_storing_thread_is_interrupted_the_others_are_told_and_later_ones_stored() -> None:
    held = Held(KeyboardInterrupt())
    together: Together[int, int] = Together(held, most=2, wait_s=30)
    assert gathered(held, together, [-2, 3, 4]) == [10, KeyboardInterrupt, StoreError, 40]
    assert together.add(5, size=1) == 50
    assert held.calls == [[1], [-2, 3], [4], [5]]


class Joined:
    """Stores numbers; during its first call another thread adds 2."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self.threads = threads
        self.stored: list[int] = []
        self.others: list[Future[int]] = []
        self.together: Together[int, int] = Together(self, most=10, wait_s=5)

    def __call__(self, numbers: Sequence[int]) -> Sequence[int]:
        if not self.stored:
            self.others.append(self.threads.submit(self.together.add, 2, size=1))
            until_waiting(self.together, 1)
        self.stored.extend(numbers)
        return numbers


@contextmanager
def interrupted_at(count: int) -> Iterator[None]:
    """KeyboardInterrupt in `together.py` where Python may raise it: the `count`-th time that a call begins or ends."""

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        if frame.f_code.co_filename == Together.add.__code__.co_filename and event in ("call", "c_return"):
            count -= 1
            if count == 0:
                raise KeyboardInterrupt

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(before)


def test_an_interrupt_at_any_call_stores_nothing_twice_and_keeps_nobody_waiting() -> None:
    with ThreadPoolExecutor(2) as threads:
        for count in range(1, 1000):
            joined = Joined(threads)
            try:
                with interrupted_at(count):
                    assert joined.together.add(1, size=1) == 1
                break
            except KeyboardInterrupt:
                assert threads.submit(joined.together.add, 3, size=1).result() == 3
                assert [other.result() for other in joined.others] == [2]
                assert sorted(joined.stored) in ([2, 3], [1, 2, 3])
    assert 10 < count < 999


def test_who_waits_too_long_is_told_and_not_stored() -> None:
    held = Held()
    together: Together[int, int] = Together(held, most=10, wait_s=0.05)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(together.add, 1, size=1)
        assert held.began.wait(HANGS_S)
        with pytest.raises(StoreError, match=r"0\.05 s"):
            together.add(2, size=1)
        held.go_on.set()
        assert first.result() == 10
    assert together.add(3, size=1) == 30
    assert held.calls == [[1], [3]]


def test_threads_of_a_store_get_each_their_own_and_repeated_ones_are_stored_once(
    store_url: Path | str, measure: Callable[..., Measurement]
) -> None:
    with Store.open(store_url) as store, ThreadPoolExecutor(8) as threads:

        def add(number: int) -> Receipt | None:
            found = [measure(1 + number % 7, threads=1 + number % 3), measure(1 + number % 5)]
            return store.add_once(found, Receipt(f"key{number % 30}", f"digest{number % 30}"), keep_s=None)

        former = list(threads.map(add, range(60)))
        assert sum(one is None for one in former) == 30
        assert all(one is None or one.digest == f"digest{i % 30}" for i, one in enumerate(former))
        counts = store.counts()
        assert (counts.measurements, counts.samples) == (60, 180)
        assert len(store.measurements()) == 60

"""What other threads have called outlasts them, in one thread that all share; errors come back to who asked."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from threadcast.threads.lasting import in_lasting_thread

T = TypeVar("T")


def in_another_thread(function: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function).result()


def test_the_main_thread_calls_it_itself() -> None:
    assert in_lasting_thread(threading.get_ident) == threading.get_ident()


def test_other_threads_share_one_that_goes_on() -> None:
    first, second = (in_another_thread(lambda: in_lasting_thread(threading.current_thread)) for _ in range(2))
    assert first is second is not threading.main_thread()
    assert first.is_alive()
    assert first.daemon


def test_an_error_reaches_who_asked_and_the_thread_goes_on() -> None:
    def fails() -> None:
        raise KeyError("here")

    with pytest.raises(KeyError, match="here"):
        in_another_thread(lambda: in_lasting_thread(fails))
    assert in_another_thread(lambda: in_lasting_thread(lambda: 1)) == 1


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_has_a_thread_of_its_own() -> None:
    in_another_thread(lambda: in_lasting_thread(lambda: None))
    child = os.fork()
    if child == 0:
        found = 1
        try:
            found = 0 if in_another_thread(lambda: in_lasting_thread(os.getpid)) == os.getpid() else 1
        finally:
            os._exit(found)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

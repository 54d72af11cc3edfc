"""Compilations go on in threads, each once, and their errors are kept."""

from __future__ import annotations

import os
import threading

import pytest

from threadcast.core.errors import ExecutionError
from threadcast.runtime.engine.native.compilations import NICE, Compilations


def test_a_compilation_runs_once_and_beside_the_caller() -> None:
    compilations, go_on, runs = Compilations(), threading.Event(), []

    def compile_it() -> None:
        runs.append(threading.current_thread())
        assert go_on.wait(60)

    assert compilations.running("key", compile_it)
    assert compilations.running("key", compile_it)
    go_on.set()
    runs[0].join(60)
    assert not compilations.running("key", compile_it)
    assert (len(runs), runs[0] is threading.current_thread(), compilations.error("key")) == (1, False, None)


@pytest.mark.parametrize("hurry", [False, True])
def test_only_what_hurries_has_the_priority_of_the_steps(hurry: bool) -> None:
    compilations, found = Compilations(), []

    def compile_it() -> None:
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    compilations.running("key", compile_it, hurry=hurry)
    compilations.wait("key", 60.0)
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert found == [own if hurry else max(own, NICE)]


def test_an_error_is_kept_for_whoever_asks() -> None:
    compilations, error = Compilations(), ExecutionError("there is no C++ compiler")

    def fails() -> None:
        raise error

    while compilations.running("key", fails):
        pass
    assert compilations.error("key") is error
    assert compilations.error("another key") is None


def test_a_compilation_is_waited_for_until_it_ends_or_for_a_time() -> None:
    compilations, go_on = Compilations(), threading.Event()
    compilations.wait("key", 60.0)  # none has begun
    assert compilations.running("key", lambda: go_on.wait(60))
    compilations.wait("key", 0.01)
    assert compilations.running("key", lambda: None)
    go_on.set()
    compilations.wait("key", 60.0)
    assert not compilations.running("key", lambda: None)

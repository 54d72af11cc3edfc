"""Exceptions of signal handlers are told from others, whatever the handler is."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from threadcast.core.signal_handlers import raised_by_signal_handler


class Stop(Exception):
    pass


def named(number: int, frame: Any) -> None:
    raise Stop


def of_any(*_: Any) -> None:
    raise Stop


class Stopping:
    def stop(self, number: int, frame: Any) -> None:
        self.deeper()

    def deeper(self) -> None:
        raise Stop


@pytest.fixture(params=[named, of_any, Stopping().stop], ids=["named", "of any arguments", "a method"])
def handled(request: pytest.FixtureRequest) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, request.param)
    yield
    signal.signal(signal.SIGUSR1, before)


def error_of(call: Callable[[], object]) -> BaseException:
    with pytest.raises(Stop) as caught:
        call()
    return caught.value


@pytest.mark.usefixtures("handled")
def test_what_a_handler_raises_is_told() -> None:
    def interrupted() -> None:
        signal.raise_signal(signal.SIGUSR1)
        assert sum(range(100))

    assert raised_by_signal_handler(error_of(interrupted))


def test_what_the_code_itself_raises_is_its_own() -> None:
    def raises(number: int, frame: Any = None) -> None:
        raise Stop

    assert not raised_by_signal_handler(error_of(lambda: raises(3)))
    assert not raised_by_signal_handler(Stop())

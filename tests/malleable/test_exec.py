"""`threadcast exec` with any program: what is refused, what a program is started with, and its masks from outside."""

from __future__ import annotations

import os
import sys

import pytest

from tests.cli.commands import invoke
from tests.malleable.processes import CORES
from threadcast.core.errors import InvalidInput
from threadcast.malleable.attach import attach
from threadcast.malleable.sockets import socket_of


def test_more_cores_than_there_are_are_refused_as_least() -> None:
    told = invoke("exec", "--least", str(CORES + 1), "--", "true")
    assert told.exit_code == 1
    assert f"least={CORES + 1} is more than the {CORES} cores" in told.output
    with pytest.raises(InvalidInput, match="more than the"):
        attach(least=CORES + 1)
    assert not socket_of(os.getpid()).exists()


@pytest.mark.parametrize("command", [("exec", "--", "true"), ("arbiter",), ("top",), ("resize", "1", "1")], ids=str)
def test_elsewhere_than_on_linux_it_says_so(monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    told = invoke(*command)
    assert told.exit_code == 1
    assert f"threadcast {command[0]} needs Linux" in told.output

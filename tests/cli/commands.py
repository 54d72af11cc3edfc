"""Running the command line in process, with commands made for a test."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import Callable
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from threadcast.cli import main
from threadcast.cli.options import common


def invoke(*args: str) -> Result:
    """Run `threadcast *args` in this process."""
    return CliRunner().invoke(main.cli, args)


def install(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], *decorators: Any) -> None:
    """Make `function` the command `threadcast doctor`."""
    body = common(function)
    for decorator in reversed(decorators):
        body = decorator(body)
    name = "threadcast.cli.doctor"
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.command = click.command()(body)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)

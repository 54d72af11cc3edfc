"""What tests of the system need is installed only where that is asked for, and missed aloud then."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests import services


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One service is known, which is not there."""
    monkeypatch.setattr(services, "SERVICES", {"oven": services.Service(lambda: None, "debian-oven")})
    monkeypatch.delenv("INSTALL", raising=False)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would install something."""
    commands: list[list[str]] = []
    run: Callable[..., object] = lambda command, **_: commands.append(command)  # noqa: E731
    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_what_is_missing_skips_a_test_and_fails_it_where_all_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pytest.skip.Exception, match="oven is not installed"):
        services.need("oven")
    monkeypatch.setenv("INSTALL", "1")
    with pytest.raises(pytest.fail.Exception, match="oven is not installed"):
        services.need("oven")


@pytest.mark.parametrize(
    ("terminal", "answer", "installs"), [(False, None, False), (True, False, False), (True, True, True)]
)
def test_it_asks_once_on_a_terminal_and_else_installs_nothing(
    terminal: bool, answer: bool, installs: bool, ran: list[list[str]], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("sys.stdin.isatty", lambda: terminal)
    monkeypatch.setattr("click.confirm", lambda _: answer)
    services.main()
    assert "apt-get install debian-oven" in capsys.readouterr().out
    assert [command[-1] for command in ran] == (["update", "debian-oven"] if installs else [])


def test_what_cannot_be_installed_though_asked_for_is_an_error(
    ran: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INSTALL", "1")
    with pytest.raises(SystemExit, match="oven"):
        services.main()
    assert len(ran) == 2

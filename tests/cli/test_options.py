from __future__ import annotations

import pytest

from tests.cli.commands import install, invoke
from threadcast.cli.options import setting
from threadcast.core.settings import SETTINGS


def show(output, settings, **options):
    output.result({"port": settings["service.port"], "origin": settings.origins["service.port"], **options})


def test_a_flag_gives_its_setting_the_value_above_all_others(monkeypatch):
    install(monkeypatch, show, setting("service.port", "--port"))
    monkeypatch.setenv("THREADCAST_SERVICE_PORT", "2")
    assert '"port": 2' in invoke("doctor", "--json").stdout
    assert '"port": 3' in invoke("doctor", "--json", "--port", "3").stdout
    assert "command line" in invoke("doctor", "--json", "--port", "3").stdout


@pytest.mark.parametrize("value", ["99999", "-1", "many", ""])
def test_a_flag_outside_what_its_setting_allows_is_wrong_usage(monkeypatch, value):
    install(monkeypatch, show, setting("service.port", "--port"))
    result = invoke("doctor", "--port", value)
    assert result.exit_code == 2
    assert f"Invalid value for '--port': {value!r} must be a whole number of at least 0 and at most 65535" in (
        result.stderr.replace("\n", " ")
    )


def test_the_help_of_a_flag_comes_from_the_table(monkeypatch):
    install(monkeypatch, show, setting("service.port", "--port"), setting("predictor.deadline_s", "--deadline"))
    text = " ".join(invoke("doctor", "--help").stdout.split())
    port, deadline = SETTINGS["service.port"], SETTINGS["predictor.deadline_s"]
    assert f"--port INT {port.doc} [service.port; default: 8321]" in text
    assert f"--deadline FLOAT {deadline.doc} (seconds) [predictor.deadline_s; default: 1.0]" in text


def test_the_settings_file_can_be_named(monkeypatch, tmp_path):
    install(monkeypatch, show)
    (tmp_path / "my.toml").write_text("[service]\nport = 5")
    assert '"port": 5' in invoke("doctor", "--json", "--config", str(tmp_path / "my.toml")).stdout
    assert invoke("doctor", "--config", str(tmp_path / "no.toml")).exit_code == 2
    (tmp_path / "my.toml").write_text("[service]\nprot = 5")
    result = invoke("doctor", "--config", str(tmp_path / "my.toml"))
    assert result.exit_code == 1
    assert "did you mean service.port?" in result.stderr

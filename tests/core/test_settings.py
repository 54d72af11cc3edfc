from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from threadcast.core.errors import ConfigError
from threadcast.core.settings import SETTINGS, Settings


class Place:
    """A home and a working directory of a test's own."""

    def __init__(self, root: Path) -> None:
        self.work, self.home = root / "work", root / "home"
        self.work.mkdir()
        self.user_file = self.home / ".config/threadcast/threadcast.toml"
        self.user_file.parent.mkdir(parents=True)
        self.file = self.work / "threadcast.toml"

    def read(self, flags=None, *, file=None, **environment) -> Settings:
        return Settings.read(flags, file=file, directory=self.work, environment={"HOME": str(self.home), **environment})


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_without_anything_every_setting_has_its_default(place):
    settings = place.read()
    data = place.home / ".local/share/threadcast"
    assert settings["store"] == f"sqlite:///{data}/threadcast.db"
    assert settings["models"] == data / "models"
    assert settings["cores"] is None
    assert settings["service.port"] == 8321
    assert set(settings.origins.values()) == {"default"}


def test_flag_beats_environment_beats_file_beats_the_users_file_beats_default(place):
    place.user_file.write_text(
        "[service]\nport = 1\nhost = 'user'\n[predictor]\ndeadline_s = 1\n[profile]\nbudget_s = 1\n"
    )
    place.file.write_text("[service]\nport = 2\nhost = 'file'\n[predictor]\ndeadline_s = 2\n")
    settings = place.read(
        {"service.port": 4, "service.host": None}, THREADCAST_SERVICE_PORT="3", THREADCAST_SERVICE_HOST="env"
    )
    names = ("service.port", "service.host", "predictor.deadline_s", "profile.budget_s", "profile.tolerance")
    assert [settings[name] for name in names] == [4, "env", 2.0, 1.0, 0.02]
    assert [settings.origins[name] for name in names] == [
        "command line", "THREADCAST_SERVICE_HOST", str(place.file), str(place.user_file), "default",
    ]  # fmt: skip


def test_a_named_file_is_read_in_place_of_the_current_directorys(place, tmp_path):
    place.file.write_text("cores = 2")
    other = tmp_path / "other.toml"
    other.write_text("[service]\nport = 7")
    assert place.read(file=other)["cores"] is None
    assert place.read(file=other)["service.port"] == 7
    assert place.read(THREADCAST_CONFIG=str(other))["service.port"] == 7


def test_a_named_file_that_is_missing_is_an_error(place):
    with pytest.raises(ConfigError, match=r"settings file nowhere\.toml does not exist"):
        place.read(THREADCAST_CONFIG="nowhere.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cors = 2", r"threadcast\.toml: unknown setting 'cors'; did you mean cores\?"),
        ("[service]\nprot = 2", r"unknown setting 'service\.prot'; did you mean service\.port\?"),
        ("xyzzy = 2", r"unknown setting 'xyzzy'; known: store, models"),
        ("service = 3", "unknown setting 'service'"),
        ("cores = 0", r"threadcast\.toml: cores is 0, it must be a whole number of at least 1"),
        ("cores = 1.5", "cores is 1.5, it must be a whole number"),
        ("cores = true", "cores is True"),
        ("cores = [1]", "cores is"),
        ("models = 3", "models is 3, it must be a path"),
        ("store = ''", "store is '', it must be text"),
        ("[predictor]\ndeadline_s = nan", r"deadline_s is nan, it must be a number of at least 0.001 \(seconds\)"),
        ("[service]\nport = 65536", "at least 0 and at most 65535"),
        ("cores = ", "is not TOML"),
    ],
)
def test_a_wrong_file_names_itself_the_key_and_what_is_allowed(place, text, message):
    place.file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        place.read()


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("THREADCAST_SERVICE_PROT", "2", r"unknown environment variable .*; did you mean THREADCAST_SERVICE_PORT\?"),
        ("THREADCAST_CORES", "many", "THREADCAST_CORES: cores is 'many', it must be a whole number of at least 1"),
        ("THREADCAST_CORES", "", "cores is ''"),
        ("THREADCAST_PROFILE_BUDGET_S", "inf s", r"profile\.budget_s is 'inf s'"),
    ],
)
def test_a_wrong_variable_names_itself_and_what_is_allowed(place, variable, value, message):
    with pytest.raises(ConfigError, match=message):
        place.read(**{variable: value})


def test_relative_paths_in_a_file_start_at_the_file(place):
    place.user_file.write_text("models = 'shelf'")
    assert place.read()["models"] == place.user_file.parent / "shelf"
    assert place.read({"models": "shelf"})["models"] == Path("shelf")


def test_a_name_that_is_no_setting_cannot_be_asked_for(place):
    with pytest.raises(ConfigError, match=r"did you mean service\.port"):
        place.read()["service.prot"]
    with pytest.raises(ConfigError, match="unknown setting"):
        place.read({"service.prot": 1})


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.name)
def test_every_setting_is_documented_and_its_default_is_allowed(setting):
    assert setting.doc.endswith(".")
    assert setting.shown_default
    assert setting.allowed
    default = setting.default({"HOME": "/home/a"}) if callable(setting.default) else setting.default
    if default is not None:
        assert setting.check(default, origin="default") == default
        assert setting.check(str(default), origin="text") == default


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.name)
@example(value="~nobody-has-this-name")
@given(value=st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers()))
def test_any_value_is_of_the_settings_type_or_refused(setting, value):
    try:
        checked = setting.check(value, origin="a test")
    except ConfigError:
        return
    assert isinstance(checked, setting.kind)

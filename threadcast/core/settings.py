"""Every setting of threadcast, and reading it: flag > THREADCAST_* environment > threadcast.toml > default.

`threadcast.toml` is looked for in the current directory and then in the user's configuration directory; what the
first one does not set, the second one may. Dots in a name are tables in the file and underscores in the
environment: `service.port` is `[service] port = 8321` and `THREADCAST_SERVICE_PORT=8321`.
"""

from __future__ import annotations

import difflib
import math
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from threadcast.core.errors import ConfigError

FILE_NAME = "threadcast.toml"
CONFIG_VARIABLE = "THREADCAST_CONFIG"
"""Environment variable that names a settings file to read instead of the one in the current directory."""

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_KINDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}


def user_data_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Where measurements and models live by default: $XDG_DATA_HOME/threadcast, else ~/.local/share/threadcast."""
    return _user_dir(environment, "XDG_DATA_HOME", ".local/share")


def user_config_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the user's own threadcast.toml lies: $XDG_CONFIG_HOME/threadcast, else ~/.config/threadcast."""
    return _user_dir(environment, "XDG_CONFIG_HOME", ".config")


def _user_dir(environment: Mapping[str, str], variable: str, fallback: str) -> Path:
    base = Path(environment.get(variable, ""))
    home = Path(environment.get("HOME") or Path.home())
    return (base if base.is_absolute() else home / fallback) / "threadcast"  # XDG: relative paths are ignored


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its name, type, default, unit, allowed values and what it does.

    A `default` that is a function is computed from the environment. None stands for "not set" and is
    only ever a default.
    """

    name: str
    kind: type[str] | type[int] | type[float] | type[bool] | type[Path]
    default: str | float | bool | Callable[[Mapping[str, str]], str | Path] | None
    doc: str
    unit: str = ""
    minimum: float = -math.inf
    maximum: float = math.inf
    choices: tuple[str, ...] = ()
    default_text: str = ""
    """What documentation shows for a default that is computed or None."""

    @property
    def variable(self) -> str:
        """Name of its environment variable."""
        return "THREADCAST_" + self.name.upper().replace(".", "_")

    @property
    def allowed(self) -> str:
        """What a value must be, in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        words = _KINDS[self.kind]
        if self.minimum > -math.inf:
            words += f" of at least {self.minimum:g}"
        if self.maximum < math.inf:
            words += f"{' and' if self.minimum > -math.inf else ' of'} at most {self.maximum:g}"
        return f"{words} ({self.unit})" if self.unit else words

    @property
    def shown_default(self) -> str:
        """The default as documentation shows it."""
        return self.default_text or str(self.default)

    def check(self, value: Any, *, origin: str, base: Path | None = None) -> Any:
        """Return `value` as this setting's type; ConfigError, naming `origin`, when it is none of the allowed.

        Text is read as the type where that is not text (environment, flags). A relative path is taken from `base`.
        """
        try:
            converted = _convert(value, self.kind)
        except ValueError:
            raise self._refuse(value, origin) from None
        if isinstance(converted, Path):
            converted = converted.expanduser()
            return base / converted if base else converted
        if self.choices and converted not in self.choices:
            raise self._refuse(value, origin)
        if isinstance(converted, int | float) and not self.minimum <= converted <= self.maximum:  # also refuses nan
            raise self._refuse(value, origin)
        return converted

    def _refuse(self, value: Any, origin: str) -> ConfigError:
        return ConfigError(f"{origin}: {self.name} is {value!r}, it must be {self.allowed}")


def _convert(value: Any, kind: type) -> Any:
    if isinstance(value, bool) or kind is bool:
        if isinstance(value, bool) and kind is bool:
            return value
        if isinstance(value, str) and value.lower() in _TRUE + _FALSE:
            return value.lower() in _TRUE
        raise ValueError
    if kind in (str, Path):
        if not isinstance(value, str | Path) or not str(value):
            raise ValueError
        return kind(value)
    if isinstance(value, str):
        return kind(value)
    if isinstance(value, int) or (kind is float and isinstance(value, float)):
        return kind(value)
    raise ValueError


SETTINGS: Mapping[str, Setting] = MappingProxyType({
    setting.name: setting
    for setting in (
        Setting(
            "store", str, lambda env: f"sqlite:///{user_data_dir(env) / 'threadcast.db'}",
            "Where measurements live, as an SQLAlchemy URL.", default_text="threadcast.db in the user's data directory",
        ),
        Setting(
            "models", Path, lambda env: user_data_dir(env) / "models",
            "Directory of the registered models.", default_text="models in the user's data directory",
        ),
        Setting(
            "cores", int, None, "Cores to use.", "cores", minimum=1,
            default_text="all that this process may use",
        ),
        Setting("profile.budget_s", float, 0.2, "Longest time spent on one op in one case.", "seconds", minimum=0.001),
        Setting(
            "profile.confidence", float, 0.95, "Confidence of the interval around each median.", minimum=0.5,
            maximum=0.999,
        ),
        Setting(
            "profile.tolerance", float, 0.02, "Half-width of that interval, relative to the median, to stop at.",
            minimum=0.0001, maximum=1,
        ),
        Setting(
            "profile.busy_limit", float, 0.1,
            "Share of the usable cores that other work may take before timing is refused.", minimum=0, maximum=1,
        ),
        Setting("train.jobs", int, None, "Models fitted side by side.", minimum=1, default_text="one a usable core"),
        Setting("service.host", str, "127.0.0.1", "Address that the prediction service listens on."),
        Setting("service.port", int, 8321, "Port that it listens on; 0 takes a free one.", minimum=0, maximum=65535),
        Setting("service.timeout_s", float, 30.0, "Longest time for one request.", "seconds", minimum=0.001),
        Setting("predictor.url", str, None, "Prediction service that schedulers ask.", default_text="none: in process"),
        Setting("predictor.deadline_s", float, 1.0, "Longest wait for the service before the local model answers.",
                "seconds", minimum=0.001),
    )
})  # fmt: skip
"""Every setting by name. What is not here is not a setting."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The value of every setting and where it came from; `settings["service.port"]`."""

    values: Mapping[str, Any]
    origins: Mapping[str, str] = field(default_factory=dict)
    """By name: the flag, variable or file that set it, or "default"."""

    def __getitem__(self, name: str) -> Any:
        if name not in SETTINGS:
            raise _unknown(name, "this program")
        return self.values[name]

    @classmethod
    def read(
        cls,
        flags: Mapping[str, Any] | None = None,
        *,
        file: Path | None = None,
        directory: Path | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> Settings:
        """Read all settings: `flags` (by setting name, None for absent), environment, files, defaults.

        `file` is read in place of `directory`/threadcast.toml (None: the current directory). Raises ConfigError on
        an unknown name, an ill-typed value, or a file that is not TOML or cannot be read.
        """
        named = file or (Path(environment[CONFIG_VARIABLE]) if environment.get(CONFIG_VARIABLE) else None)
        if named is not None and not named.is_file():
            raise ConfigError(f"the settings file {named} does not exist")
        candidates = [named or (directory or Path.cwd()) / FILE_NAME, user_config_dir(environment) / FILE_NAME]
        values = {n: s.default(environment) if callable(s.default) else s.default for n, s in SETTINGS.items()}
        origins = dict.fromkeys(SETTINGS, "default")
        layers = [_from_file(path) for path in reversed(candidates) if path.is_file()]
        layers += [_from_environment(environment), _from_flags(flags or {})]
        for layer in layers:
            for name, (value, origin) in layer.items():
                values[name], origins[name] = value, origin
        return cls(MappingProxyType(values), MappingProxyType(origins))


_Layer = dict[str, tuple[Any, str]]


def _from_file(path: Path) -> _Layer:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    layer: _Layer = {}
    for name, value in _flattened(document):
        if name not in SETTINGS:
            raise _unknown(name, str(path))
        layer[name] = SETTINGS[name].check(value, origin=str(path), base=path.parent), str(path)
    return layer


def _flattened(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        found += _flattened(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return found


def _from_environment(environment: Mapping[str, str]) -> _Layer:
    by_variable = {setting.variable: setting for setting in SETTINGS.values()}
    layer: _Layer = {}
    for variable, text in environment.items():
        if not variable.startswith("THREADCAST_") or variable == CONFIG_VARIABLE:
            continue
        if variable not in by_variable:
            raise ConfigError(f"unknown environment variable {variable}{_nearest(variable, list(by_variable))}")
        setting = by_variable[variable]
        layer[setting.name] = setting.check(text, origin=variable), variable
    return layer


def _from_flags(flags: Mapping[str, Any]) -> _Layer:
    layer: _Layer = {}
    for name, value in flags.items():
        if name not in SETTINGS:
            raise _unknown(name, "this program")
        if value is not None:
            layer[name] = SETTINGS[name].check(value, origin="command line"), "command line"
    return layer


def _unknown(name: str, origin: str) -> ConfigError:
    return ConfigError(f"{origin}: unknown setting {name!r}{_nearest(name, list(SETTINGS))}")


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"

"""Reading the settings: flag > THREADCAST_* environment > threadcast.toml > default.

`threadcast.toml` is read from the current directory and from the user's configuration directory; the first one takes
precedence. Dots in a name are tables in the file and underscores in the environment: `service.port` is `[service] port
= 8321` and `THREADCAST_SERVICE_PORT=8321`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from threadcast.core.arguments import nearest
from threadcast.core.errors import ConfigError
from threadcast.core.settings_table import SETTINGS
from threadcast.core.user_directories import user_config_dir

__all__ = ["CONFIG_VARIABLE", "DATA_VARIABLE", "FILE_NAME", "SETTINGS", "Settings"]

FILE_NAME = "threadcast.toml"
CONFIG_VARIABLE = "THREADCAST_CONFIG"
"""Environment variable that names a settings file to read instead of the one in the current directory."""

DATA_VARIABLE = "THREADCAST_DATA"
"""Environment variable that names the `data/` folder of a checkout; read by `threadcast.store.published`."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The value of every setting and where it came from; `settings["service.port"]` is one value."""

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
        if not variable.startswith("THREADCAST_") or variable in (CONFIG_VARIABLE, DATA_VARIABLE):
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
    close = nearest(name, known)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"

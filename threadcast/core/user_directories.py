"""The directories of the user's own files, by the XDG base directory specification."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def user_data_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Default directory of measurements and models: $XDG_DATA_HOME/threadcast, else ~/.local/share/threadcast."""
    return _user_dir(environment, "XDG_DATA_HOME", ".local/share")


def user_config_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Directory of the user's own threadcast.toml: $XDG_CONFIG_HOME/threadcast, else ~/.config/threadcast."""
    return _user_dir(environment, "XDG_CONFIG_HOME", ".config")


def user_cache_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Directory of files that can be created again: $XDG_CACHE_HOME/threadcast, else ~/.cache/threadcast."""
    return _user_dir(environment, "XDG_CACHE_HOME", ".cache")


def user_runtime_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Directory of sockets: $XDG_RUNTIME_DIR/threadcast, else /tmp/threadcast-UID."""
    base = Path(environment.get("XDG_RUNTIME_DIR", ""))
    return base / "threadcast" if base.is_absolute() else Path(f"/tmp/threadcast-{os.getuid()}")


def _user_dir(environment: Mapping[str, str], variable: str, fallback: str) -> Path:
    base = Path(environment.get(variable, ""))
    home = Path(environment.get("HOME") or Path.home())
    return (base if base.is_absolute() else home / fallback) / "threadcast"  # XDG: relative paths are ignored

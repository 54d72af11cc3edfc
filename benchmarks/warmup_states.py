"""What threadcast finds when a case begins: nothing, a store that knows other networks, or a bundle."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from warmup_networks import CASES, Case
from warmup_turns import Side

from threadcast.core.settings import Settings

STATES = ("cold", "store", "bundle")

TAUGHT_S = 30.0
"""Seconds of calls of each network that a store is to know."""


def cold(name: str, folder: Path) -> dict[str, str]:
    """The environment of a process that finds nothing but the compiled engine; `name` is that of its own folder."""
    place = folder / f"{name}-cold"
    _emptied(place)
    _copy_engine(place / "native")
    return _variables(place)


def environment(case: Case, state: str, folder: Path) -> dict[str, str]:
    """The environment of a process that finds this state; everything that it stores lands below `folder`.

    In every state the native engine is compiled already, which happens once on a machine; fused operators are so only
    in a bundle.
    cold: no plans, no measurements. store: what steps of the other group of networks have stored: of the built-in ones
    for a case that is not built in, and the other way round. bundle: what `threadcast bundle` carries over of what the
    case's last cold run has left.
    """
    place = folder / f"{case.network}-{state}"
    if state == "bundle":
        left = folder / f"{case.network}-cold"
        if not left.exists():
            raise RuntimeError(f"{case.title}: the state bundle needs what a cold run leaves; run cold before")
        _emptied(place)
        _bundle("save", str(place / "bundle"), variables=_variables(left))
        _bundle("load", str(place / "bundle"), "--trust", variables=_variables(place))
    else:
        _emptied(place)
        _copy_engine(place / "native")
    found = _variables(place)
    if state == "store":
        store = store_without(case, folder)
        for part in store.parent.glob(f"{store.name}*"):  # with SQLite's journal, if a process left one
            shutil.copy(part, place / part.name)  # a copy, as what this case adds is not for the others
    return found


def store_without(case: Case, folder: Path) -> Path:
    """The store that knows the group of networks to which `case` does not belong; made when it is first asked for.

    It is what optimised steps of these networks have stored, each run for `TAUGHT_S` seconds.
    """
    others = [other for other in CASES if bool(other.size) != bool(case.size)]
    place = folder / f"knows-{'built-in' if others[0].size else 'own'}"
    store = place / "store.db"
    if not store.exists():
        _emptied(place)
        _copy_engine(place / "native")
        for other in others:
            teacher = Side(other.title, "threadcast", _variables(place))
            try:
                teacher.turn(TAUGHT_S)
            finally:
                teacher.close()
        if not store.exists():
            raise RuntimeError(f"optimised steps have stored nothing at {store}; the state store needs engine.feedback")
    return store


def _emptied(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _copy_engine(target: Path) -> None:
    """Copy the compiled engine, but no fused operators, from this process's cache."""
    cache: Path = Settings.read()["engine.cache"]
    target.mkdir()
    for folder in cache.iterdir() if cache.exists() else ():
        if not folder.name.startswith("fused"):
            shutil.copytree(folder, target / folder.name)


def _bundle(*arguments: str, variables: Mapping[str, str]) -> None:
    subprocess.run([sys.executable, "-m", "threadcast", "bundle", *arguments], env=dict(variables), check=True)


def _variables(place: Path) -> dict[str, str]:
    others = {name: value for name, value in os.environ.items() if not name.startswith("THREADCAST_")}
    return {
        **others, "THREADCAST_ENGINE_CACHE": str(place / "native"), "THREADCAST_ENGINE_PLANS": str(place / "plans"),
        "THREADCAST_STORE": f"sqlite:///{place / 'store.db'}", "XDG_DATA_HOME": str(place / "data"),
        "XDG_CACHE_HOME": str(place / "cache"), "XDG_CONFIG_HOME": str(place / "config"),
        "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"), "TRITON_CACHE_DIR": str(place / "triton"),
    }  # fmt: skip

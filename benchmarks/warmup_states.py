"""What threadcast finds when a case begins: nothing, a store that knows other networks, or a bundle."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from warmup_networks import CASES, Case

from threadcast.core.settings import Settings

STATES = ("cold", "store", "bundle")

PROFILE_S = 0.02
"""Budget of `threadcast profile` for each op, in seconds, when it fills a store."""


def cold(name: str, folder: Path) -> dict[str, str]:
    """The environment of a process that finds nothing but the compiled engine; `name` is that of its own folder."""
    place = folder / f"{name}-cold"
    _emptied(place)
    _copy_engine(place / "native")
    return _variables(place)


def environment(case: Case, state: str, folder: Path) -> dict[str, str]:
    """The environment of a process that finds this state; everything that it stores lands below `folder`.

    In every state the native engine is compiled already, which happens once on a machine, and fused operators are not.
    cold: no plans, no measurements. store: the measurements of the other group of networks: the built-in ones for a
    case that is not built in, and the other way round. bundle: the plans that the case's last cold run has left.
    """
    place = folder / f"{case.network}-{state}"
    if state == "bundle":
        cold = folder / f"{case.network}-cold"
        if not cold.exists():
            raise RuntimeError(f"{case.title}: the state bundle needs what a cold run leaves; run cold before")
        _emptied(place)
        shutil.copytree(cold, place, dirs_exist_ok=True)
    else:
        _emptied(place)
        _copy_engine(place / "native")
    found = _variables(place)
    if state == "store":
        found["THREADCAST_STORE"] = f"sqlite:///{store_without(case, folder)}"
    return found


def store_without(case: Case, folder: Path) -> Path:
    """The store that knows the group of networks to which `case` does not belong; made when it is first asked for."""
    others = [other for other in CASES if bool(other.size) != bool(case.size)]
    store = folder / f"knows-{'built-in' if others[0].size else 'own'}.db"
    if not store.exists():
        draft = store.with_suffix(".draft")
        draft.unlink(missing_ok=True)
        variables = _variables(folder / "profiles") | {"THREADCAST_STORE": f"sqlite:///{draft}"}
        for other in others:
            command = [str(Path(sys.executable).with_name("threadcast")), "profile", *other.profiled]
            command += ["--budget-s", str(PROFILE_S), "--allow-busy"]
            subprocess.run(command, env=variables, check=True, stdout=subprocess.DEVNULL)
        draft.rename(store)
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


def _variables(place: Path) -> dict[str, str]:
    others = {name: value for name, value in os.environ.items() if not name.startswith("THREADCAST_")}
    return {
        **others, "THREADCAST_ENGINE_CACHE": str(place / "native"), "THREADCAST_ENGINE_PLANS": str(place / "plans"),
        "THREADCAST_STORE": f"sqlite:///{place / 'store.db'}", "XDG_DATA_HOME": str(place / "data"),
        "XDG_CACHE_HOME": str(place / "cache"), "XDG_CONFIG_HOME": str(place / "config"),
        "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"), "TRITON_CACHE_DIR": str(place / "triton"),
    }  # fmt: skip

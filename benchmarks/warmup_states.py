"""What a process finds when a case begins: nothing, or what the first process of the same case has left."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from threadcast.core.settings import Settings


def cold(name: str, folder: Path) -> dict[str, str]:
    """The environment of a process that finds nothing but the compiled engine; `name` is that of its own folder.

    Without plans, measurements, fused operators or caches of Inductor. All that it stores lands below `folder`.
    """
    place = folder / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    cache: Path = Settings.read()["engine.cache"]
    for part in cache.iterdir() if cache.exists() else ():
        if not part.name.startswith("fused"):
            shutil.copytree(part, place / "native" / part.name)
    return again(name, folder)


def again(name: str, folder: Path) -> dict[str, str]:
    """The environment of a later process of the same case, which finds what the earlier ones have left.

    Python keeps its bytecode, as it does for users: compiling threadcast's sources anew takes 0.2 s.
    """
    place = folder / name
    left_out = ("THREADCAST_", "PYTHONDONTWRITEBYTECODE")
    others = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return {
        **others, "THREADCAST_ENGINE_CACHE": str(place / "native"), "THREADCAST_ENGINE_PLANS": str(place / "plans"),
        "THREADCAST_STORE": f"sqlite:///{place / 'store.db'}", "XDG_DATA_HOME": str(place / "data"),
        "XDG_CACHE_HOME": str(place / "cache"), "XDG_CONFIG_HOME": str(place / "config"),
        "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"), "TRITON_CACHE_DIR": str(place / "triton"),
    }  # fmt: skip

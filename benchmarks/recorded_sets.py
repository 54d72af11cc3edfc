"""Reads the sets of measurements in `data/recorded`, which threadcast itself recorded; each set's card is there too."""

from __future__ import annotations

from pathlib import Path

from threadcast.core import Measurement
from threadcast.core.errors import NotFound
from threadcast.store.long_form import read_long_form
from threadcast.store.published import data_directory


def recorded(name: str | None = None, *, folder: Path | None = None) -> list[Measurement]:
    """The measurements of the set of this name (`amd-epyc-2c`), or of all sets; NotFound for an unknown name."""
    folder = folder or data_directory() / "recorded"
    sets = {path.name.removesuffix(".csv.gz"): path for path in sorted(folder.glob("*.csv.gz"))}
    if name is not None and name not in sets:
        raise NotFound(f"no recorded set is called {name!r}; there are: {', '.join(sets) or 'none'}")
    chosen = sets.values() if name is None else [sets[name]]
    return [measurement for path in chosen for measurement in read_long_form(path)]

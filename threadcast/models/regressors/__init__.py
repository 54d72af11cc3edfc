"""The regressors of the per-case models, a file for each family. Every file here is found: nothing else names it.

Source of the list: Liu et al. 2018, III-B, which names ten kinds without their hyper-parameters; XGBoost is added.
Comments give the reasons for values that are not the library's defaults.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any


def found() -> Iterator[Any]:
    """The regressors (`contract.Regressor`) that the files list in `REGRESSORS`, file after file."""
    for file in iter_modules(__path__):
        yield from getattr(import_module(f"{__name__}.{file.name}"), "REGRESSORS", ())

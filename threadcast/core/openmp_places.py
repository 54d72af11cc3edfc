"""Where OpenMP has bound the thread that loaded it.

OMP_PLACES, OMP_PROC_BIND, GOMP_CPU_AFFINITY or KMP_AFFINITY have OpenMP divide the CPUs that it finds into places. It
binds each thread that leads a team to the first one: the main thread as soon as PyTorch is imported, with one core in
its mask from then on, which limits nothing but this thread. The places together are the CPUs that it has found.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable
from pathlib import Path

_NAME = re.compile(r"lib(gomp|iomp5|omp)\b[^/]*\.so[\d.]*")


Places = tuple[frozenset[int], ...]
"""The CPUs of each place of one library, in its order."""

VARIABLES = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND")
"""Environment variables that have OpenMP bind threads; they are read as a library is loaded."""


def before_binding(mask: frozenset[int], libraries: Iterable[Places] | None = None) -> frozenset[int]:
    """Return the CPUs among which OpenMP has chosen, where it has bound a thread to `mask`; else `mask` itself.

    `libraries`: the places of those to look at (None: of all that this process has loaded).
    """
    known = list(openmp_places().values() if libraries is None else libraries)
    for _ in known:  # one library may have found no other CPUs than the first place of another one
        mask = mask.union(*(place for places in known if places[0] == mask for place in places))
    return mask


def openmp_places() -> dict[str, Places]:
    """Return the places of the OpenMP libraries that this process has loaded and that bind threads, by path."""
    return {path: places for path in _loaded_libraries() if (places := _places_of(path))}


def _loaded_libraries() -> list[str]:
    """Paths of the OpenMP libraries that this process has loaded; packages bring their own."""
    try:
        lines = os.fsdecode(Path("/proc/self/maps").read_bytes()).splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(line[line.index("/") :] for line in lines if "/" in line)
    found = {path: name for path in paths if (name := _NAME.fullmatch(path.rpartition("/")[2]))}
    asked = any(variable in os.environ for variable in VARIABLES)  # else LLVM's begins as it is asked, in this thread
    return [path for path, name in found.items() if asked or name[1] == "gomp"]


def _places_of(path: str) -> Places:
    """The places of a library; none where it binds no threads."""
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        if not library.omp_get_proc_bind():
            return ()
        places = []
        for place in range(library.omp_get_num_places()):
            cpus = (ctypes.c_int * library.omp_get_place_num_procs(place))()
            library.omp_get_place_proc_ids(place, cpus)
            places.append(frozenset(cpus))
    except (OSError, AttributeError):  # replaced on the disk meanwhile, or older than OpenMP 4.5
        return ()
    return tuple(places)

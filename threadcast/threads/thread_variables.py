"""Environment variables that say to a program, as it starts, how many threads to use, and how they wait."""

from __future__ import annotations

from collections.abc import Mapping

_COUNTS = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS", "GOMAXPROCS", "JULIA_NUM_THREADS",
)  # fmt: skip
"""Read by OpenMP, libraries of linear algebra, Rust, Go and Julia. TBB, Java and .NET go by the affinity mask."""
_LEAST_UV = 4
"""libuv's own number of threads (Node.js), which wait for files and name servers; of fewer, one holds up all."""


_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Say how long OpenMP's threads spin where they wait for each other. On shared cores that holds up those that
they wait for: on 2 cores of which one was taken away, a stencil made 40 steps a second, and 22,000 without (GCC 12)."""


def thread_variables(cores: int, environment: Mapping[str, str], *, shared: bool) -> dict[str, str]:
    """Return the variables, of those that `environment` does not set, of a program that starts on so many cores.

    `shared`: whether the cores may be taken away later, in part, while the program's threads stay as many.
    """
    found = {**dict.fromkeys(_COUNTS, str(cores)), "UV_THREADPOOL_SIZE": str(max(cores, _LEAST_UV))}
    if shared and not any(name in environment for name in _WAITING):
        found["OMP_WAIT_POLICY"] = "passive"
    return {name: value for name, value in found.items() if name not in environment}

"""Environment variables that say to a program, as it starts, how many threads to use."""

from __future__ import annotations

_COUNTS = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS", "GOMAXPROCS", "JULIA_NUM_THREADS",
)  # fmt: skip
"""Read by OpenMP, libraries of linear algebra, Rust, Go and Julia. TBB, Java and .NET go by the affinity mask."""
_LEAST_UV = 4
"""libuv's own number of threads (Node.js), which wait for files and name servers; of fewer, one holds up all."""


def thread_variables(cores: int) -> dict[str, str]:
    """Return the variables of a program that starts on so many cores."""
    return {**dict.fromkeys(_COUNTS, str(cores)), "UV_THREADPOOL_SIZE": str(max(cores, _LEAST_UV))}

"""Runs a command as if this machine had many cores: `python tests/as_if 16 COMMAND...`.

Whatever it starts is told of so many cores, in cache groups of eight; threads share the real ones. So it shows what is
right or wrong on many cores (lanes, teams, divisions of cores), and nothing of how fast it is. Linux only, with a C
compiler and leave to mount in a namespace of its own. OpenMP's threads sleep where they wait: they would spin on one
another's CPUs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

GROUP, MOST = 8, 64
CACHES = ((1, "Data", "32K"), (2, "Unified", "512K"), (3, "Unified", "32M"))
"""Level, kind and size of each core's caches; the last one is its group's."""
_CPU = "/sys/devices/system/cpu"
_MOUNTED = f"""
mount --bind "$1" {_CPU} && mount -t tmpfs none /sys/fs/cgroup || exit 125
shift
exec "$@"
"""


def describe(folder: Path, cores: int) -> None:
    """Write the part of /sys that describes so many cores, in cache groups of `GROUP`."""
    files = dict.fromkeys(("online", "possible", "present"), f"0-{cores - 1}")
    for core in range(cores):
        first = core // GROUP * GROUP
        group = f"{first}-{min(first + GROUP, cores) - 1}"
        topology = f"cpu{core}/topology"
        files |= {f"{topology}/core_id": str(core), f"{topology}/physical_package_id": "0",
                  f"{topology}/thread_siblings_list": str(core), f"{topology}/core_cpus_list": str(core)}  # fmt: skip
        for index, (level, kind, size) in enumerate(CACHES):
            cache = f"cpu{core}/cache/index{index}"
            files |= {f"{cache}/level": str(level), f"{cache}/type": kind, f"{cache}/size": size,
                      f"{cache}/shared_cpu_list": group if level == len(CACHES) else str(core)}  # fmt: skip
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n")


def main() -> int:
    """Run the command; returns its status, 125 where nothing may be mounted."""
    parser = argparse.ArgumentParser(prog="tests/as_if", description=__doc__)
    parser.add_argument("cores", type=int, help=f"1 to {MOST}")
    parser.add_argument("program", help="what to run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")
    given = parser.parse_args()
    if not 1 <= given.cores <= MOST:
        parser.error(f"cores={given.cores} must be 1 to {MOST}")
    with tempfile.TemporaryDirectory(prefix="as-if-") as made:
        library, cpus = Path(made, "cpus.so"), Path(made, "cpu")
        macros = [f"-DCPUS={given.cores}", f"-DREAL={len(os.sched_getaffinity(0))}"]
        source = Path(__file__).with_name("cpus.c")
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", *macros, "-o", library, source, "-ldl"], check=True)
        describe(cpus, given.cores)
        environment = {**os.environ, "LD_PRELOAD": str(library), "OMP_WAIT_POLICY": "passive"}
        environment.pop("AS_IF_MASK", None)
        own = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
        command = [*own, "sh", "-c", _MOUNTED, "sh", str(cpus), given.program, *given.arguments]
        return subprocess.run(command, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())

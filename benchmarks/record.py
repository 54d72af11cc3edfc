"""Times every operation of every small network in every case: data/recorded/SET.csv.gz.

    python benchmarks/record.py [--set x86_64-2c]

On a quiet machine; an hour on 2 cores.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys

from run_facts import ROOT

from threadcast import networks
from threadcast.core import read_machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    named = f"{platform.machine()}-{len(read_machine())}c"
    parser.add_argument("--set", default=named, help="name of the set (%(default)s)")
    chosen = parser.parse_args()
    store = ROOT / "build" / "record.db"
    store.parent.mkdir(exist_ok=True)
    for file in store.parent.glob("record.db*"):
        file.unlink()
    url = f"sqlite:///{store}"
    command = [sys.executable, "-m", "threadcast"]
    for network in networks.names():
        profile = ["profile", network, "--size", "small", "--cases", "all", "--budget-s", "0.05", "--store", url]
        subprocess.run([*command, *profile], check=True)
    table = ROOT / "data" / "recorded" / f"{chosen.set}.csv.gz"
    subprocess.run([*command, "db", "export", str(table), "--store", url], check=True)


if __name__ == "__main__":
    main()

"""How long threadcast takes to start: medians over fresh interpreters, on the clock and on the processor.

    python benchmarks/startup.py [--runs 15]

Fails when `import threadcast` takes the processor more than 150 ms longer than an empty interpreter.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

LIMIT_S = 0.150

PROGRAMS = {
    "python": ["-c", "pass"],
    "import threadcast": ["-c", "import threadcast"],
    "import threadcast.core": ["-c", "import threadcast.core"],
    "import threadcast.scheduler": ["-c", "import threadcast.scheduler"],
    "threadcast --help": ["-c", "from threadcast.cli.main import main; main()", "--help"],
}


def times(arguments: list[str]) -> tuple[float, float]:
    """Seconds on the clock and on the processor of one fresh interpreter."""
    started, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    used_s = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - started, used_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in PROGRAMS}
    for _ in range(runs):  # interleaved, so that drift hits all alike
        for name, arguments in PROGRAMS.items():
            taken[name].append(times(arguments))
    medians = {name: tuple(map(statistics.median, zip(*runs))) for name, runs in taken.items()}
    print(f"{'':28}{'clock':>8}{'processor':>12}")
    for name, (clock_s, processor_s) in medians.items():
        print(f"{name:28}{clock_s * 1e3:5.0f} ms{processor_s * 1e3:9.0f} ms")
    return int(medians["import threadcast"][1] - medians["python"][1] > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())

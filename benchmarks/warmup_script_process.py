"""Runs a public script (`warmup_scripts.py`) for at most the environment's MOST_S seconds, and notes its steps.

    python benchmarks/warmup_script_process.py SCRIPT ARGUMENTS

The file STEPS gets the seconds from BEGAN_S (`time.monotonic`) until each backward pass of the script began, and until
the script ended.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Any

from zoo_libraries import library


def main() -> None:
    began_s, steps = float(os.environ["BEGAN_S"]), []
    library("torch")  # and what torchvision needs
    from torch import Tensor

    backward = Tensor.backward

    def noted(tensor: Tensor, *args: Any, **options: Any) -> None:
        steps.append(time.monotonic() - began_s)
        backward(tensor, *args, **options)

    Tensor.backward = noted  # type: ignore[method-assign,assignment]

    def save() -> None:
        Path(os.environ["STEPS"]).write_text(json.dumps([steps, time.monotonic() - began_s]))

    def stop(*_: object) -> None:
        save()
        raise SystemExit(0)

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, float(os.environ["MOST_S"]) - (time.monotonic() - began_s))
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(script).parent))
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        save()


if __name__ == "__main__":
    main()

"""Measures one model of a judge: eager PyTorch, Inductor and threadcast in processes of their own, by turns."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from run_facts import RunFacts
from warmup_others import OtherWork

WAYS = ("eager", "inductor", "threadcast")
TURNS, TURN_S = 7, 0.4
SLOW_S = 0.6
"""A graph whose step takes longer in eager PyTorch is left out."""
LIMIT_S = 300.0
"""Longest time of one answer, beside the seconds that were asked for: Inductor compiles in one."""


class WayFailed(Exception):
    """A way of running a model raised, or gave no answer in time."""


class Process:
    """A process that runs a model in one way; it is stopped except while it answers."""

    def __init__(self, judge: str, name: str, mode: str, who: str, folder: Path) -> None:
        command = [sys.executable, str(Path(__file__).with_name("judge_process.py")), judge, name, mode, who]
        fresh = {"THREADCAST_ENGINE_TUNING_SHARE": "1"} | {
            "THREADCAST_ENGINE_PLANS": str(folder / "plans"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        }
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True, env={**os.environ, **fresh},
        )  # fmt: skip
        self._read(LIMIT_S)

    def ask(self, what: str, value: Any, *, seconds: float = 0.0) -> Any:
        """The answer to one line; WayFailed where there is none."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        print(json.dumps([what, value]), file=self._process.stdin, flush=True)
        return self._read(LIMIT_S + seconds).get("answer")

    def close(self) -> None:
        """End the process and all that it started."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _read(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        line = self._process.stdout.readline() if ready else ""
        self._signal(signal.SIGSTOP)
        answer: dict[str, Any] = json.loads(line) if line else {"error": f"no answer within {seconds:.0f} s"}
        if "error" in answer:
            raise WayFailed(answer["error"])
        return answer

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def measured(judge: str, name: str, mode: str, *, settle_s: float) -> dict[str, Any] | None:
    """The record of one model; None for a graph of GraphNet that is slower than `SLOW_S`."""
    others = OtherWork(())
    record: dict[str, Any] = {"name": name, "mode": mode, "run": RunFacts.now().to_json(), "ways": {}}
    began_s = time.monotonic()
    with ExitStack() as end, TemporaryDirectory() as folder:
        running: dict[str, Process] = {}
        for who in WAYS:
            way: dict[str, Any] = {}
            record["ways"][who] = way
            try:
                process = running[who] = Process(judge, name, mode, who, Path(folder))
                end.callback(process.close)
                way["settled"] = process.ask("settle", settle_s, seconds=settle_s)
                if judge == "graphnet" and who == "eager" and process.ask("turn", TURN_S) > SLOW_S:
                    return None
                result = f"{folder}/result.pt"
                way.update(process.ask("result" if who == "eager" else "compare", result) or {})
            except WayFailed as error:
                way["error"] = str(error)
                running.pop(who, None)
                if who == "eager":
                    return record
        turns: dict[str, list[float]] = {who: [] for who in running}
        for number in range(TURNS):
            for who in list(running)[:: 1 if number % 2 else -1]:
                try:
                    turns[who].append(running[who].ask("turn", TURN_S, seconds=TURN_S))
                except WayFailed as error:
                    record["ways"][who]["error"] = str(error)
                    running.pop(who)
        for who, seconds in turns.items():
            way = record["ways"][who]
            if "error" not in way:
                ratios = [eager / own for eager, own in zip(turns["eager"], seconds, strict=True)]
                way |= {"turns_s": seconds, "step_s": median(seconds), "speedup": median(ratios)}
    return record | {"others": others.share(), "seconds": time.monotonic() - began_s}

"""Steps of ten networks by threadcast, beside eager PyTorch at every thread count and `torch.compile`.

Every contender has a process of its own, stopped with all that it has started except in its turns. Those of a few cases
start side by side, as compiling takes longest; then the optimised step learns alone, and all run in turns. A contender
that cannot start, or not in time, is named with why.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles
from typing import Any

from many_cores_cases import CASES, MODES, StepCase
from many_cores_correctness import has_compiler
from many_cores_results import Results, Turns
from sessions import Session

PART = "steps"
TURN_S, MOST_STEPS = 0.1, 20
"""Seconds of timed steps in one turn, about, and most steps; one step at least."""
ROUNDS = 4
LONG_S = 2.0
"""A contender whose turns at one setting took so long together has had enough of them."""
START_S, LEARN_S = 90.0, 30.0
"""Most seconds that contenders have until they are ready, and that an optimised step has to learn; and at most half of
what is left of the part's time."""
FIRST_S = 30.0
"""What the first case may take."""
CASE_S = 45.0
"""What a case takes after its contenders' start, about: no more start together than there is time for."""
TUNED_COUNTS = 3
"""Eager PyTorch with malloc and layout chosen runs at so many of the largest thread counts."""


class Contender:
    """A contender's process: ready after `wait_ready`, then it times steps when told. RuntimeError where it fails."""

    def __init__(self, setting: Mapping[str, Any]) -> None:
        self.setting, self.info = setting, dict[str, Any]()
        self.seconds: dict[int, list[float]] = {}
        self.peak_bytes = 0
        script = Path(__file__).with_name("many_cores_contender.py")
        self._running = subprocess.Popen(
            [sys.executable, str(script), json.dumps(setting)], bufsize=0,
            env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2"},  # others compile beside it
            start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._errors = b""
        self._session = Session(self._running.pid)

    @property
    def name(self) -> str:
        """Who it is."""
        return str(self.setting["who"])

    def wait_ready(self, most_s: float) -> None:
        """Wait until the first steps are made."""
        self.info = self._answer(most_s)
        self._session.stop()

    def turn(self, threads: int, steps: int, most_s: float) -> float:
        """Time so many steps at a thread count; returns the seconds of one."""
        assert self._running.stdin is not None
        self._session.go_on()
        self._running.stdin.write(json.dumps({"threads": threads, "steps": steps}).encode() + b"\n")
        answer = self._answer(most_s)
        self._session.stop()
        self.seconds.setdefault(threads, []).extend(answer["seconds"])
        self.peak_bytes = answer["peak_bytes"]
        return float(answer["seconds"][-1])

    def end(self) -> None:
        """End the process and all that it has started."""
        self._session.kill()
        self._running.communicate()

    def _answer(self, most_s: float) -> dict[str, Any]:
        """One line of the process; its errors are read meanwhile, so that it never waits for them to be read."""
        out, err = self._running.stdout, self._running.stderr
        assert out is not None
        assert err is not None
        end_s, line = time.monotonic() + most_s, b""
        with selectors.DefaultSelector() as ready:
            ready.register(out, selectors.EVENT_READ)
            ready.register(err, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    raise RuntimeError(f"not ready within {most_s:.0f} s")
                for key, _ in ready.select(left_s):
                    read = os.read(key.fd, 1 << 16)
                    if key.fileobj is out:
                        if not read:
                            raise RuntimeError(f"ended: {self._last_error()}")
                        line += read
                    else:
                        self._errors = (self._errors + read)[-4000:]
                        if not read:
                            ready.unregister(err)
        found: dict[str, Any] = json.loads(line)
        return found

    def _last_error(self) -> str:
        self._running.wait()
        assert self._running.stderr is not None
        lines = (self._errors + self._running.stderr.read()).decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else f"status {self._running.returncode}"


def finished(lines: Sequence[Mapping[str, Any]]) -> set[str]:
    """The cases in which no contender failed, or that were tried twice."""
    tried = Counter(line["key"] for line in lines if line["part"] == PART)
    whole = {line["key"] for line in lines if line["part"] == PART and not line["failed"]}
    return whole | {key for key, times in tried.items() if times > 1}


def key_of(case: StepCase, mode: str) -> str:
    """The name under which a case's result is kept."""
    return f"{case.title}, {mode}"


def contenders(case: StepCase, mode: str, cores: int) -> list[dict[str, Any]]:
    """What the processes of one case are told; the optimised step's is last."""
    everybody = ("eager", "eager, tuned", *(("torch.compile",) if has_compiler() else ()), "threadcast")
    base = {"case": case.title, "mode": mode, "threads": cores, "learn_s": LEARN_S}
    return [{**base, "who": who} for who in everybody]


def run(results: Results, cores: int, counts: Sequence[int], end_s: float) -> None:
    """Case after case until the time is up. Many start together: as there are cores but one, if time suffices."""
    done = finished(results.read())
    left = [(case, mode) for case in CASES for mode in MODES if key_of(case, mode) not in done]
    turns = Turns(end_s, FIRST_S)
    while left and turns.next():
        together = max(min(cores - 1, int((end_s - time.monotonic() - START_S) / CASE_S)), 1)
        some, left = left[:together], left[together:]
        with ExitStack() as ends, ThreadPoolExecutor(len(some) * 3) as starting:
            began_s = time.monotonic()
            most_s = min(START_S, (end_s - began_s) / 2)
            jobs = [
                {one["who"]: starting.submit(_started, one, ends, most_s) for one in contenders(*of_case, cores)[:-1]}
                for of_case in some
            ]
            ready = [{who: job.result() for who, job in of_case.items()} for of_case in jobs]
            start_s = time.monotonic() - began_s
            for (case, mode), of_case in zip(some, ready, strict=True):
                if time.monotonic() >= end_s:
                    return
                figures = measured(case, mode, cores, counts, of_case, ends, end_s)
                results.add(
                    PART, key_of(case, mode), case=case.title, mode=mode, cores=cores, start_s=start_s, **figures
                )


def _started(setting: Mapping[str, Any], ends: ExitStack, most_s: float) -> Contender | str:
    """The contender after its first steps, or why it has none within so many seconds."""
    contender, began_s = Contender(setting), time.monotonic()
    ends.callback(contender.end)
    try:
        contender.wait_ready(most_s)
    except RuntimeError as error:
        contender.end()
        return str(error)
    took_s = time.monotonic() - began_s
    print(f"{setting['case']}, {setting['mode']}, {contender.name}: {took_s:.1f} s", file=sys.stderr, flush=True)
    return contender


def measured(
    case: StepCase, mode: str, cores: int, counts: Sequence[int], started: Mapping[str, Contender | str],
    ends: ExitStack, end_s: float,
) -> dict[str, Any]:  # fmt: skip
    """Medians and quartiles of every contender of one case, at every thread count where it has several."""
    own, left_s = contenders(case, mode, cores)[-1], end_s - time.monotonic()
    own["learn_s"] = min(LEARN_S, left_s / 3)
    everybody = {**started, "threadcast": _started(own, ends, min(START_S, 0.7 * left_s))}
    failed = {name: one for name, one in everybody.items() if isinstance(one, str)}
    running = [one for one in everybody.values() if isinstance(one, Contender)]
    by_name = {"eager": counts, "eager, tuned": counts[-TUNED_COUNTS:]}
    settings = [(one, n) for one in running for n in reversed(by_name.get(one.name, (cores,)))]
    lengths: dict[tuple[str, int], int] = {}
    for number in range(ROUNDS):
        for one, threads in settings:
            spent_s = sum(one.seconds.get(threads, ()))
            if one.name in failed or (number and (spent_s > LONG_S or time.monotonic() > end_s)):
                continue
            try:
                last_s = one.turn(threads, lengths.get((one.name, threads), 1), START_S)
            except (RuntimeError, OSError) as error:
                failed[one.name] = str(error)
                continue
            lengths[one.name, threads] = max(1, min(MOST_STEPS, round(TURN_S / last_s)))
    found = {
        one.name: {"by_threads": {str(n): summary(s) for n, s in one.seconds.items()}, "peak_bytes": one.peak_bytes,
                   **one.info}
        for one in running
    }  # fmt: skip
    for one in running:
        one.end()
    return {"contenders": found, "failed": failed}


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Median and quartiles of seconds."""
    low, middle, high = quantiles(seconds, n=4) if len(seconds) > 1 else (seconds[0],) * 3
    return {"median_s": middle, "low_s": low, "high_s": high, "steps": len(seconds)}

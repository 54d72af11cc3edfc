"""One process of `benchmarks/compiled.py`: it runs calls of a case in one of four ways, when told to.

    python benchmarks/compiled_process.py "U-Net, training" eager|inductor|backend|optimize

It reads and writes lines as `warmup_process.py` does.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch._inductor.config as inductor_config
from compiled_cases import case_of
from warmup_networks import Case
from warmup_process import Told, described, eager, optimised

from threadcast.runtime.compile_backend import compiled_calls_learn, compiled_graphs


def way(case: Case, who: str) -> tuple[Callable[[], object], Callable[[], list[Any]], Callable[[], bool]]:
    """A call or training step in this way, what returns its reports, and whether anything is still being learned."""
    work = case.load()
    if who == "optimize":
        step = optimised(work, case.inference)
        arguments = work.inputs if case.inference else (*work.inputs, work.target)
        return partial(step, *arguments), lambda: step.reports, lambda: step.learning
    if who == "eager":
        return eager(work, case.inference), list, lambda: False
    compiled: Any = torch.compile(work.model, backend="inductor")
    if who == "inductor":
        inductor_config.freezing = case.inference
    else:
        options = {"freeze": True} if case.inference else {}
        compiled = torch.compile(work.model, backend="threadcast", options=options)
    call = eager(replace(work, model=compiled), case.inference)
    return (call, list, lambda: False) if who == "inductor" else (call, _reports, compiled_calls_learn)


def _reports() -> list[Any]:
    return [report for graph in compiled_graphs() for report in graph.reports]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")  # whatever a library prints must not get in between
    os.dup2(2, 1)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -5)
    title, who = sys.argv[1:]
    call, reports, learns = way(case_of(title), who)
    print(json.dumps({"pid": os.getpid()}), file=answers, flush=True)
    told = Told(call, reports)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for line in sys.stdin:
            seconds, calls, untimed = json.loads(line)
            for _ in range(untimed):
                call()
            answer = told.block(seconds, calls)
            answer |= {"reports": described(reports()), "warnings": sorted({str(one.message) for one in caught})}
            answer["learning"] = learns()
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()

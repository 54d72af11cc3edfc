"""The program of a process that times a network's step in plain PyTorch at one setting.

`plain_process.PlainProcess` starts it and talks with it over pipes, a line of JSON at a time. The first line to it
is the request, which is answered by a description of the step. Each line after it is a number of steps, answered by
the seconds that each took. An error is answered by `{"error": {"type", "message"}}`, which is the last line.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from threadcast.core.parent_process import end_with_parent
from threadcast.threads.memory import peak_bytes

if TYPE_CHECKING:
    from threadcast.networks import Workload

WARM_UP = 3
"""Steps before the first timed one. They fill allocators and kernel caches, and start thread teams."""


def answers_to(requests: TextIO) -> Iterator[dict[str, Any]]:
    """Yield the answer to each line of `requests`, up to the first error."""
    try:
        import torch  # noqa: F401 - its memory is not the network's

        before_bytes = peak_bytes()
        step, info = _build(json.loads(requests.readline()))
        for _ in range(WARM_UP):
            step()
        yield {**info, "needs_bytes": peak_bytes() - before_bytes}
        for line in requests:
            yield _timed(step, int(line))
    except Exception as error:  # noqa: BLE001 - a user's network may raise anything; the caller is told
        yield {"error": {"type": type(error).__name__, "message": str(error)}}


def _build(request: dict[str, Any]) -> tuple[Callable[[], object], dict[str, Any]]:
    import torch

    from threadcast.capture.workloads import default_mode, eager_step
    from threadcast.networks import load_spec
    from threadcast.runtime.plans.model_format import formats_of

    if request["threads"] is not None:
        torch.set_num_threads(request["threads"])
    workload = load_spec(request["network"], size=request["size"], batch=request["batch"])
    mode = request["mode"] or default_mode(workload)
    info = {"threads": torch.get_num_threads(), "mode": mode, "size": workload.size, "batch": workload.batch,
            "images": len(formats_of(workload.model, workload.inputs)) > 1}  # fmt: skip
    if request["channels_last"]:
        workload = _channels_last(workload)
    return eager_step(workload, mode, optimizer=request["optimizer"]), info


def _channels_last(workload: Workload) -> Workload:
    """The workload in channels last, as a user would write it: the model converted once, the inputs in each step."""
    import torch

    from threadcast.networks.plain_callable import PlainCallable
    from threadcast.runtime.plans.model_format import with_images_channels_last

    model: Any = workload.model
    model.to(memory_format=torch.channels_last)
    changed = PlainCallable(lambda *inputs: model(*with_images_channels_last(inputs)))
    changed.add_module("model", model)  # its parameters are trained
    return replace(workload, model=changed)


def _timed(step: Callable[[], object], steps: int) -> dict[str, Any]:
    """Seconds of each step, page faults of all of them, and the peak memory in bytes so far.

    One more step runs before them, untimed: it finds the caches full of other processes' data.
    """
    from threadcast.threads.openmp import end_idle_workers

    step()
    before, seconds = _faults(), []
    for _ in range(steps):
        started_s = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started_s)
    faults = _faults() - before
    end_idle_workers()  # they would spin while others are timed
    return {"seconds": seconds, "faults": faults, "peak_bytes": peak_bytes()}


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _main() -> None:
    end_with_parent()  # in the midst of a step too
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # what a network reads or prints must not get in between
    os.dup2(2, 1)
    for answer in answers_to(requests):
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    _main()

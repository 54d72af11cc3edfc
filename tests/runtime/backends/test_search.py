"""A search for backends takes little from its caller, ends with it, and leaves nothing behind."""

from __future__ import annotations

import errno
import gc
import os
import random
import signal
import subprocess
import sys
import weakref
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import threadcast
from tests.runtime.backends.programs import ARGUMENTS, Two
from tests.runtime.backends.searches import found_by, polled, processes_in, search_for, wait_until_gone
from tests.waiting import eventually
from threadcast.capture.graph.capture import capture_forward
from threadcast.runtime.backends import search as search_module
from threadcast.runtime.backends import search_guard
from threadcast.runtime.backends.search import BackendSearch, begin_process
from threadcast.runtime.backends.search_guard import PREFIX
from threadcast.runtime.doors import optimized_call
from threadcast.runtime.tuner.backends_beside import BackendsBeside

pytestmark = pytest.mark.usefixtures("folder")


@pytest.mark.parametrize("unlimited", [False, True])
def test_only_a_caller_that_waits_may_be_kept_long_by_opening(
    module: Two, unlimited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "OPENING_S", 0.0)
    search = search_for(module, ARGUMENTS, among=["onnxruntime"], close=1e6)
    search.start()
    assert len(list(polled(search, unlimited=unlimited))) == unlimited
    assert any("opening it takes" in reason for reason in search.left_out.values()) != unlimited


def test_a_search_rests_until_it_is_waited_for(module: Two, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_guard, "QUIET_S", 0.0)  # it is always told again
    with closing(search_for(module, ARGUMENTS, among=["onnxruntime"], close=1e6)) as search:
        search.start()
        assert not search.has_turn, "it has not begun"
        (worker,) = processes_in(folder)
        while search._process is None or not search._process.heard:
            search.wait(1.0)
            search._listen()

        def stopped() -> bool:
            search.rest(True)  # this process idles otherwise
            return Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] == "T"

        eventually(stopped)
        assert search.has_turn
        assert len(list(polled(search, unlimited=True))) == 1


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("closed", [False, True])
def test_a_search_that_is_closed_or_that_nobody_asks_any_more_ends_and_frees_the_weights(
    folder: Path, begun: bool, closed: bool
) -> None:
    module = Two().eval()
    search, weights = search_for(module, ARGUMENTS), weakref.ref(module.mix.weight)
    search.start()
    if begun:
        processes_in(folder)
    if closed:
        search.close()
        search.close()
        assert search.over
        assert search.poll() is None
    del search, module
    eventually(lambda: gc.collect() >= 0 and weights() is None)
    wait_until_gone(folder)


def test_one_search_of_a_process_is_at_work_at_a_time(module: Two) -> None:
    made = list[BackendSearch]()

    def make(*_: object) -> BackendSearch:
        made.append(search_for(module, ARGUMENTS, among=["onnxruntime"], close=1e6))
        return made[-1]

    captured = capture_forward(module, *ARGUMENTS[0])
    first, second, third = (BackendsBeside(make) for _ in range(3))
    with closing(first), closing(second), closing(third):
        first.begin(captured, (), None)
        second.begin(captured, (), None)
        assert (first.works, second.works, second.waits) == (True, False, True)
        second.before_step(rests=False)
        assert second.beside, "steps of others are beside it, too"
        assert made[0]._process is not None
        while not made[0]._process.heard:
            made[0].wait(1.0)
            made[0]._listen()
        second.before_step(rests=True)
        assert made[0]._process._rests
        assert not second.beside
        second.before_step(rests=False)
        eventually(lambda: second.begin(captured, (), None) or second.works)  # type: ignore[func-returns-value]
        second.close()
        third.begin(captured, (), None)
        assert third.works, "the second one was closed"
        assert len(made) == 3
        assert made[0].poll() or made[0].poll(), "what it has built can be opened all the same"


def test_a_process_is_kept_for_the_next_search_under_the_same_conditions(module: Two, folder: Path) -> None:
    assert len(found_by(search_for(module, ARGUMENTS, among=["onnxruntime"], close=1e6))) == 1
    (worker,) = processes_in(folder)
    with closing(
        search_for(nn.Linear(3, 3).eval(), ((torch.ones(2, 3),), {}), among=["onnxruntime"], close=1e6)
    ) as one:
        (way,) = found_by(one)
        x = torch.randn(2, 3)
        torch.testing.assert_close(way.run((x,), {}), one._module(x))
    assert processes_in(folder) == [worker]
    with closing(search_for(module, ARGUMENTS, cpus=[0])) as other:
        other.start()
        eventually(lambda: not Path(f"/proc/{worker}").exists())
    wait_until_gone(folder)


def test_a_process_that_was_begun_early_works_at_once_and_serves_the_search(module: Two, folder: Path) -> None:
    begin_process(1)
    (worker,) = processes_in(folder)
    eventually(lambda: Path(f"/proc/{worker}/maps").read_text().count("libtorch_cpu"))
    assert len(found_by(search_for(module, ARGUMENTS, among=["onnxruntime"], close=1e6))) == 1
    assert processes_in(folder) == [worker]


def test_a_fork_has_no_search(module: Two) -> None:
    with closing(BackendsBeside(lambda *_: search_for(module, ARGUMENTS))) as beside:
        beside.begin(capture_forward(module, *ARGUMENTS[0]), (), None)
        if (child := os.fork()) == 0:
            beside.before_step(rests=False)
            os._exit(beside.beside)
        assert os.waitpid(child, 0)[1] == 0
        beside.before_step(rests=False)
        assert beside.beside


def test_a_search_ends_where_weights_were_written_to_before_a_backend_is_opened(module: Two) -> None:
    search = search_for(module, ARGUMENTS, among=["onnxruntime"], close=1e6)
    search.start()
    with torch.no_grad():
        module.mix.weight.mul_(2)
    assert not list(polled(search))
    assert "the weights were written to since they were copied" in search.left_out.values()


class Dropping(nn.Module):
    """Draws random numbers in eval mode too."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.3)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Linear(3, 3).train(), "the module is in training mode"),
        (Dropping().eval(), "the module draws random numbers, and backends draw others"),
    ],
)
def test_a_module_that_no_backend_may_run_has_no_search_and_ends_the_process_that_was_begun_for_it(
    module: nn.Module, reason: str, folder: Path
) -> None:
    begin_process(1)
    (worker,) = processes_in(folder)
    before = states()
    search = search_for(module, ((torch.ones(2, 3),), {}), result=torch.ones(2, 3))
    search.start()
    assert search.over
    assert search.poll() is None
    assert search.left_out == {"every backend": reason}
    assert states() == before
    eventually(lambda: not Path(f"/proc/{worker}").exists())


@pytest.mark.parametrize(("mode", "begun"), [(False, 1), (True, 0)])
def test_learning_begins_a_process_only_for_modules_that_backends_may_run(
    mode: bool, begun: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins = list[int]()
    monkeypatch.setattr(optimized_call, "begin_process", lambda cores, **_: begins.append(cores))
    with closing(threadcast.optimize(nn.Sequential(nn.Linear(3, 3), nn.ReLU()).train(mode), cores=1)) as call:
        monkeypatch.setattr(call, "_learn", lambda *_, **__: None)
        call.learn_from((torch.ones(2, 3),), {}, seconds=1.0, least_gain=0.0, progress=False)
    assert len(begins) == begun


def test_a_search_is_over_when_its_process_ends(module: Two, folder: Path) -> None:
    with closing(search_for(module, ARGUMENTS)) as search:
        search.start()
        (worker,) = processes_in(folder)
        os.kill(worker, signal.SIGKILL)
        assert not list(polled(search))
    assert search.left_out == {"every other backend": "the process that built it ended early"}


def test_a_search_ends_where_the_program_cannot_be_handed_over(
    module: Two, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite

    def no_memory(file: int, content: bytes, offset: int) -> int:
        if len(content) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, content, offset)

    monkeypatch.setattr(os, "pwrite", no_memory)
    assert not found_by(search := search_for(module, ARGUMENTS))
    reason = f"the program cannot be handed over: {os.strerror(errno.ENOSPC)}"
    assert search.left_out == {"every backend": reason}
    wait_until_gone(folder)


@pytest.mark.system
def test_nothing_is_left_behind_by_a_caller_that_is_killed(folder: Path) -> None:
    code = """
import torch
from tests.runtime.backends.programs import ARGUMENTS, Two
from tests.runtime.backends.searches import search_for
search = search_for(Two().eval(), ARGUMENTS)
search.start()
print("started", flush=True)
input()
"""
    root = Path(__file__).parents[3]
    caller = subprocess.Popen(
        [sys.executable, "-c", code], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert caller.stdout is not None
    assert caller.stdin is not None
    with caller.stdin, caller.stdout:
        assert caller.stdout.readline() == b"started\n"
        (worker,) = processes_in(folder)
        caller.kill()
        caller.wait()
    wait_until_gone(folder)
    assert not Path(f"/proc/{worker}").exists()


def test_folders_of_killed_searches_are_deleted_by_the_next_one(module: Two, folder: Path) -> None:
    left, new = folder / f"{PREFIX}old", folder / f"{PREFIX}new"
    left.mkdir()
    new.mkdir()
    os.utime(left, (0, 0))
    os.utime(new, (2**33, 2**33))  # new however long the search takes to begin
    with closing(search_for(module, ARGUMENTS)) as search:
        search.start()
        processes_in(folder)
        assert not left.exists()
        assert new.exists()


def test_a_search_leaves_the_random_generators_as_they_are(module: Two) -> None:
    before = states()
    assert found_by(search_for(module, ARGUMENTS, among=["onnxruntime"], close=1e6))
    assert states() == before


def states() -> tuple[Any, ...]:
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state(legacy=False)["state"]["pos"]

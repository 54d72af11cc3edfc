"""Steps of plain PyTorch at settings of their own, in processes that never outlive the caller's wish."""

from __future__ import annotations

import io
import json
import os
import platform
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from threadcast.cli.plain.gains import ROUNDS, STEPS, _refuse_too_large, measure_plain_gains
from threadcast.cli.plain.step import answers_to
from threadcast.core import usable_cores
from threadcast.core.errors import InvalidInput, MeasurementError, NetworkError, NotFound
from threadcast.threads.memory import KEEPING

REQUEST = {"size": None, "batch": None, "mode": None, "optimizer": "sgd", "threads": None, "channels_last": False}

NETWORK = """
import os, signal
import torch
from torch import nn

class Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3)

    def forward(self, images):
        print("what a network prints")
        large = torch.ones(64, 1 << 18).sum()
        return self.convolution(images).view(images.shape[0], -1) + large

def views():
    try:
        raise SystemError(input())
    except EOFError:
        return Views(), (torch.ones(2, 3, 6, 6),)

def ends(when, how):
    def forward(x):
        if when():
            how()
        return x + 1
    return forward, (torch.ones(2),)

def ends_now():
    return ends(lambda: True, lambda: os.kill(os.getpid(), signal.SIGKILL))

def ends_with_memory_kept():
    def how():
        os.write(2, b"first\\nthe last word\\n")
        os._exit(7)
    return ends(lambda: "MALLOC_MMAP_MAX_" in os.environ, how)

def raises():
    def how():
        raise KeyError("a key")
    return ends(lambda: True, how)
"""


@pytest.fixture(autouse=True)
def malloc_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing told to malloc."""
    for name in KEEPING:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A file of networks, up to the function's name."""
    path = tmp_path / "own.py"
    path.write_text(NETWORK)
    return f"{path}:"


@pytest.fixture
def children() -> Callable[[], set[str]]:
    """What tells the processes that this one has started in the test and not reaped."""
    earlier = _children()  # such as the trackers that multiprocessing keeps until the end
    return lambda: _children() - earlier


def _children() -> set[str]:
    return {child for task in Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()}


@pytest.mark.system
def test_a_training_step_is_timed_at_every_setting_in_turns(children: Callable[[], set[str]]) -> None:
    told = []
    gains = measure_plain_gains("lenet", batch=2, progress=lambda done, total: told.append((done, total)))
    assert (gains.network, gains.size, gains.batch, gains.mode) == ("lenet", "tiny", 2, "training")
    counts = sorted({1, usable_cores().cores} - {gains.threads})
    threads = [f"{count} thread{'s' if count > 1 else ''}" for count in counts]
    names = [timed.setting.name for timed in gains.timed]
    assert names == ["as run now", "memory kept", "channels last", "both", *threads]
    assert (gains.failed, gains.rounds) == ({}, ROUNDS)
    assert told == [(i + 1, ROUNDS * len(names)) for i in range(ROUNDS * len(names))]
    for timed in gains.timed:
        assert 0 < timed.seconds.low <= timed.seconds.median <= timed.seconds.high
        assert 0 < timed.gain.low <= timed.gain.gain <= timed.gain.high
        assert timed.peak_bytes > 1 << 20
        assert timed.faults >= 0
        assert not timed.gains or timed.gain.low > 1
    usual = gains.timed[0]
    assert (usual.gain.low, usual.gain.high, usual.gains, usual.setting.advice) == (1, 1, False, None)
    assert not children()


@pytest.mark.system
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_kept_memory_takes_no_page_faults_and_a_network_that_fails_channels_last_is_told(own: str) -> None:
    gains = measure_plain_gains(f"{own}views")
    usual, kept = gains.timed[:2]
    assert usual.faults > 16  # of 64 MiB, even where the system gives 2 MiB at once
    assert kept.faults < usual.faults / 4
    assert set(gains.failed) == {"channels last", "both"}
    assert gains.failed["both"].startswith("RuntimeError: view size is not compatible")


def test_a_process_that_dies_is_told_with_its_setting_and_last_words(
    own: str, children: Callable[[], set[str]]
) -> None:
    with pytest.raises(MeasurementError, match=r"steps with memory kept ended: exit code 7, the last word$"):
        measure_plain_gains(f"{own}ends_with_memory_kept")
    assert not children()


def test_a_process_that_is_killed_points_at_memory(own: str, children: Callable[[], set[str]]) -> None:
    with pytest.raises(MeasurementError, match=r"steps as run now ended: signal SIGKILL, .*choose a smaller"):
        measure_plain_gains(f"{own}ends_now")
    assert not children()


def test_a_process_that_does_not_answer_is_ended(children: Callable[[], set[str]]) -> None:
    with pytest.raises(MeasurementError, match=r"as run now took longer than 0\.01 s"):
        measure_plain_gains("lenet", timeout_s=0.01)
    assert not children()


@pytest.mark.system
def test_an_interrupt_ends_all_processes(children: Callable[[], set[str]]) -> None:
    def interrupt(done: int, total: int) -> None:
        assert len(children()) > 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_plain_gains("lstm", mode="forward", progress=interrupt)
    assert not children()


def test_a_killed_caller_leaves_no_process() -> None:
    program = (
        "from pathlib import Path\n"
        "from threadcast.cli.plain.gains import measure_plain_gains\n"
        "def told(done, total):\n"
        "    print(*Path('/proc/thread-self/children').read_text().split(), flush=True)\n"
        "    input()\n"
        "measure_plain_gains('lstm', progress=told)\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True) as caller:
        assert caller.stdout is not None
        started = [os.pidfd_open(int(child)) for child in caller.stdout.readline().split()]
        caller.kill()
    try:
        assert len(started) > 1
        for process in started:
            assert select.select([process], [], [], 60)[0]
    finally:
        for process in started:
            os.close(process)


def test_networks_that_do_not_fit_into_memory_together_are_refused() -> None:
    _refuse_too_large(1, 4)
    with pytest.raises(MeasurementError, match=r"4 more processes with 1048576\.0 GiB each do not fit"):
        _refuse_too_large(1 << 50, 4)


def test_fewer_rounds_than_tell_a_gain_from_noise_are_refused() -> None:
    with pytest.raises(InvalidInput, match="rounds=9"):
        measure_plain_gains("lenet", rounds=9)


def test_what_a_network_raises_as_run_now_comes_back_as_the_error_it_is(own: str) -> None:
    with pytest.raises(NotFound, match="no size 'huge'"):
        measure_plain_gains("lenet", size="huge")
    with pytest.raises(NetworkError, match="KeyError: 'a key'"):
        measure_plain_gains(f"{own}raises")


def answers(*lines: Any, **request: Any) -> list[dict[str, Any]]:
    return list(answers_to(io.StringIO("\n".join(json.dumps(line) for line in ({**REQUEST, **request}, *lines)))))


def test_each_line_is_answered_by_as_many_timed_steps() -> None:
    ready, one, three = answers(1, STEPS, network="lstm", mode="forward")
    assert (ready["images"], ready["mode"], ready["size"], ready["batch"]) == (False, "forward", "tiny", 4)
    assert (len(one["seconds"]), len(three["seconds"])) == (1, STEPS)
    assert min(one["seconds"] + three["seconds"]) > 0


def test_a_step_channels_last_trains_the_networks_own_parameters() -> None:
    ready, turn = answers(1, network="lenet", channels_last=True, optimizer="adam")
    assert (ready["images"], len(turn["seconds"])) == (True, 1)


def test_an_error_is_the_last_answer() -> None:
    (only,) = answers(1, 1, network="lenet", batch=0)
    assert only["error"]["type"] == "InvalidInput"
    assert "at least 1" in only["error"]["message"]

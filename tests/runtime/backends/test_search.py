"""A search returns backends that answer as the module does, takes little from its caller, and leaves nothing behind."""

from __future__ import annotations

import errno
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.runtime.backends.test_backends import ARGUMENTS, Two
from tests.runtime.compiler import needs_compiler
from tests.waiting import eventually
from threadcast.capture.capture import capture_forward
from threadcast.runtime.backends import search as search_module
from threadcast.runtime.backends import search_worker
from threadcast.runtime.backends.frozen import TensorCall
from threadcast.runtime.backends.search import BACKENDS, BackendSearch, _nice
from threadcast.runtime.backends.search_guard import PREFIX
from threadcast.runtime.backends.search_slot import SearchSlot
from threadcast.runtime.backends.ways import installed
from threadcast.runtime.tuning.contender import Contender

CPUS = sorted(os.sched_getaffinity(0))
LONGEST_S = 240.0
"""Seconds within which a search must end here, whatever else the machine does."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory in which a search has its files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def search_for(module: nn.Module, arguments: tuple[tuple[Any, ...], dict[str, Any]], **options: Any) -> BackendSearch:
    captured = capture_forward(lambda args, kwargs: module(*args, **kwargs), *arguments)
    with torch.no_grad():
        args, kwargs = arguments
        result = options.pop("result") if "result" in options else module(*args, **kwargs)
    return BackendSearch(module, arguments, captured, 1, result=result, **options)


def found_by(search: BackendSearch) -> list[Contender]:
    search.start()
    return list(_polled(search))


def _polled(search: BackendSearch, *, unlimited: bool = False) -> Iterator[Contender]:
    end_s = time.monotonic() + LONGEST_S
    while not search.over:
        assert time.monotonic() < end_s
        contender = search.poll(unlimited=unlimited)
        if contender is not None:
            yield contender
        else:
            search.wait(1.0)


def wait_until_gone(folder: Path) -> None:
    """Return when no search has files in the folder."""

    def gone() -> bool:
        if not list(folder.glob(f"{PREFIX}*")):
            return True
        with suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        return False

    eventually(gone, within_s=30)


@pytest.fixture
def module() -> Two:
    torch.manual_seed(0)
    return Two().eval()


@needs_compiler
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_answers_as_the_module_until_its_weights_change(module: Two, backend: str, folder: Path) -> None:
    args, kwargs = ARGUMENTS
    changed = ({"a": args[0]["a"] * 3, "b": args[0]["b"] - 2},)
    (contender,) = found_by(search_for(module, ARGUMENTS, among=[backend], close=1e6))
    assert contender.name.partition(",")[0] == backend
    with torch.no_grad():
        result, wanted = contender.run(changed, kwargs), module(*changed, **kwargs)
    torch.testing.assert_close(result["y"], wanted["y"], rtol=1e-4, atol=1e-5)
    assert contender.holds()
    with torch.no_grad():
        module.mix.bias.add_(1)
    assert not contender.holds()
    wait_until_gone(folder)


class Drawing(nn.Module):
    """Draws a number that it reads in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        left_out = torch.rand([])
        found: Tensor = x if self.training and left_out < 0.5 else self.mix(x)
        return found


def test_numbers_that_nothing_reads_are_drawn_beside_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = Drawing().eval(), torch.ones(4, 8)
    (contender,) = found_by(search_for(module, ((x,), {}), among=["onnxruntime"], close=1e6))

    def drawn_after(run: Callable[[], object]) -> list[float]:
        torch.manual_seed(3)
        with torch.no_grad():
            run()
        found: list[float] = torch.rand(3).tolist()
        return found

    wanted = drawn_after(lambda: module(x))
    assert drawn_after(lambda: contender.run((x * math.inf,), {})) == wanted, "which PyTorch runs"
    monkeypatch.setattr(module, "forward", None)
    assert drawn_after(lambda: contender.run((x,), {})) == wanted


class WithLengths(nn.Module):
    """Returns an argument as it came, twice, beside what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, x: Tensor, lengths: Tensor) -> dict[str, Any]:
        return {"lengths": lengths, "y": [self.mix(x) * lengths[:, None], lengths]}


@needs_compiler
@pytest.mark.parametrize("backend", BACKENDS)
def test_arguments_that_are_returned_are_the_callers_own(backend: str) -> None:
    module, example = WithLengths().eval(), (torch.randn(3, 8), torch.tensor([2, 5, 1]))
    (contender,) = found_by(search_for(module, (example, {}), among=[backend], close=1e6))
    given = torch.randn(3, 8), torch.tensor([1, 0, 4])
    with torch.no_grad():
        found, wanted = contender.run(given, {}), module(*given)
    assert found["lengths"] is given[1]
    assert found["y"][1] is given[1]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


class Words(nn.Module):
    """Rows of a table, and how they lie: a result, a view of it, and it once more."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix = nn.Embedding(10, 8), nn.Linear(8, 8)

    def forward(self, words: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        y = self.mix(self.table(words) * scale).relu()
        return y, y[:, 0], y, y.sum(1).expand(3, -1, -1)


@needs_compiler
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_runs_the_calls_only_that_it_was_checked_for(backend: str) -> None:
    torch.manual_seed(0)
    module, words, scale = Words().eval(), torch.arange(128).reshape(32, 4) % 9, torch.ones(8)
    (contender,) = found_by(search_for(module, ((words, scale), {}), among=[backend], close=1e6))
    with torch.no_grad():
        found, wanted = contender.run((words + 1, scale), {}), module(words + 1, scale)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
            assert one.stride() == other.stride()
        assert found[2] is found[0]
        found[0].fill_(7)
        assert found[1].eq(7).all()
        for index in (-1, 10, 2**40):
            with pytest.raises(IndexError):
                contender.run((words.where(words != 3, index), scale), {})
        for number in (float("nan"), float("inf")):
            odd = scale.where(torch.arange(8) != 2, number)
            for one, other in zip(contender.run((words, odd), {}), module(words, odd), strict=True):
                torch.testing.assert_close(one, other, equal_nan=True)


@needs_compiler
@pytest.mark.parametrize("backend", ["onnxruntime", "torch.compile"])
def test_a_backend_and_the_search_for_it_keep_to_their_cpus(
    module: Two, backend: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args, kwargs = ARGUMENTS
    masks = []

    def opened(*arguments: Any) -> TensorCall:
        call = search_worker.opened(*arguments)

        def run(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
            masks.append(os.sched_getaffinity(0))
            return call(tensors)

        masks.append(os.sched_getaffinity(0))
        return run

    monkeypatch.setattr(search_module, "opened", opened)
    with closing(search_for(module, ARGUMENTS, among=[backend], close=1e6, cpus=CPUS[-1:])) as found:
        found.start()
        (worker,) = processes_in(folder)
        eventually(lambda: os.sched_getaffinity(worker) == set(CPUS[-1:]))
        (contender,) = _polled(found)
    with torch.no_grad():
        result, wanted = contender.run(args, kwargs), module(*args, **kwargs)
    torch.testing.assert_close(result["y"], wanted["y"], rtol=1e-4, atol=1e-5)
    assert masks == [set(CPUS[-1:])] * 3, "opening, the check, the call"
    assert os.sched_getaffinity(0) == set(CPUS)


def test_openvino_which_chooses_its_cpus_itself_is_left_out_where_they_are_given(module: Two) -> None:
    search = search_for(module, ARGUMENTS, among=["openvino"], close=1e6, cpus=CPUS[-1:])
    assert not found_by(search)
    assert "chooses CPUs itself" in search.left_out["openvino"]
    assert "openvino" in installed()
    assert "openvino" not in installed(CPUS[-1:]), "plans are stored as compared with others only"


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_pytorch_runs_the_calls_of_a_backend_with_cpus_in_a_fork_which_has_no_such_thread(module: Two) -> None:
    args, kwargs = ARGUMENTS
    search = search_for(module, ARGUMENTS, among=["onnxruntime"], close=1e6, cpus=CPUS[-1:])
    (contender,) = found_by(search)
    with torch.no_grad():
        wanted = module(*args, **kwargs)["y"]
        child = os.fork()
        if child == 0:
            code = 2
            try:
                code = 0 if torch.allclose(contender.run(args, kwargs)["y"], wanted) else 1
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_nothing_is_opened_that_would_take_too_long_from_the_caller(module: Two) -> None:
    search = search_for(module, ARGUMENTS, among=["onnxruntime"], close=1e6, limit_s=1e-3)
    assert not found_by(search)
    assert all("opening it takes" in reason for reason in search.left_out.values())
    assert search.left_out


def test_a_caller_that_waits_is_not_spared(module: Two) -> None:
    search = search_for(module, ARGUMENTS, among=["onnxruntime"], close=1e6, limit_s=1e-3)
    search.start()
    assert len(list(_polled(search, unlimited=True))) == 1
    assert search.caller_s < 1.0, "only what the start took"


def test_a_paused_search_goes_on_where_it_stopped(module: Two, folder: Path) -> None:
    with closing(search_for(module, ARGUMENTS, among=["onnxruntime"], close=1e6)) as search:
        search.pause(True)
        search.start()
        (worker,) = processes_in(folder)
        while not search._heard:
            search.wait(1.0)
            search._listen()
        search.pause(True)
        end_s = time.monotonic() + 5.0
        while Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] not in "TZ":
            assert time.monotonic() < end_s
        search.pause(False)
        assert len(list(_polled(search, unlimited=True))) == 1


def test_one_search_of_a_model_is_at_work_at_a_time(module: Two) -> None:
    slot, made = SearchSlot(), list[BackendSearch]()

    def make() -> BackendSearch:
        made.append(search_for(module, ARGUMENTS, among=["onnxruntime"], close=1e6))
        return made[-1]

    first = slot.fill(make)
    assert first is not None
    with closing(first):
        first.start()
        assert slot.fill(make) is None
        assert len(made) == 1
        end_s = time.monotonic() + LONGEST_S
        while (second := slot.fill(make)) is None:
            assert time.monotonic() < end_s
            first.wait(1.0)
        second.close()
        assert slot.fill(make) is not None, "the second one was closed"
        assert first.poll() or first.poll(), "what it has built can be opened all the same"


def test_a_search_ends_where_weights_were_written_to_before_a_backend_is_opened(module: Two) -> None:
    search = search_for(module, ARGUMENTS, among=["onnxruntime"], close=1e6)
    search.start()
    with torch.no_grad():
        module.mix.weight.mul_(2)
    assert not list(_polled(search))
    assert "the weights were written to since they were copied" in search.left_out.values()


def test_a_result_that_is_not_the_modules_is_refused(module: Two) -> None:
    args, kwargs = ARGUMENTS
    with torch.no_grad():
        wrong = module(*args, **kwargs)
        wrong["y"] += 0.01
    search = search_for(module, ARGUMENTS, among=["onnxruntime"], close=1e6, result=wrong)
    assert not found_by(search)
    assert "the answers differ from the module's" in search.left_out.values()


@pytest.mark.parametrize(("share", "nice"), [(0.05, 14), (0.1, 10), (0.5, 0), (1.0, 0), (0.001, 19), (0.0, 19)])
def test_the_priority_follows_from_the_share_of_a_core(share: float, nice: int) -> None:
    assert _nice(share) == nice


def test_a_module_in_training_mode_has_no_search(module: Two) -> None:
    search = search_for(module, ARGUMENTS)
    module.train()
    search.start()
    assert search.over
    assert search.poll() is None
    assert search.left_out == {"every backend": "the module is in training mode"}


def test_a_search_is_over_when_its_process_ends(module: Two, folder: Path) -> None:
    with closing(search_for(module, ARGUMENTS)) as search:
        search.start()
        (worker,) = processes_in(folder)
        os.kill(worker, signal.SIGKILL)
        assert not list(_polled(search))
    assert search.left_out == {"every other backend": "the process that built it ended early"}


def test_a_search_ends_where_the_program_cannot_be_handed_over(
    module: Two, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", no_memory)
    assert not found_by(search := search_for(module, ARGUMENTS))
    reason = f"the program cannot be handed over: {os.strerror(errno.ENOSPC)}"
    assert search.left_out == {"every backend": reason}
    wait_until_gone(folder)


def test_closing_ends_the_process_and_deletes_its_files(module: Two, folder: Path) -> None:
    search = search_for(module, ARGUMENTS)
    search.start()
    processes_in(folder)
    search.close()
    search.close()
    assert search.over
    assert search.poll() is None
    wait_until_gone(folder)


def test_nothing_is_left_behind_by_a_caller_that_is_killed(folder: Path) -> None:
    code = """
import torch
from tests.runtime.backends.test_search import ARGUMENTS, Two, search_for
search_for(Two().eval(), ARGUMENTS).start()
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
    with closing(search_for(module, ARGUMENTS)) as search:
        search.start()
        processes_in(folder)
        assert not left.exists()
        assert new.exists()


def processes_in(folder: Path) -> list[int]:
    """The process that builds backends in this folder, as a list of one, as soon as it has begun."""
    found: list[int] = []

    def begun() -> bool:
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = place.read_bytes().split(b"\0")
                if words[-2:-1] and words[-2].startswith(f"{folder}/{PREFIX}".encode()):
                    found.append(int(place.parent.name))
                    return True
        return False

    eventually(begun)
    return found


def test_a_class_of_a_script_has_backends(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import torch
from tests.runtime.backends.test_search import found_by, search_for
class Double(torch.nn.Module):
    def forward(self, x):
        return x * 2
found = found_by(search_for(Double().eval(), ((torch.ones(2),), {}), among=["onnxruntime"], close=1e6))
print([contender.run((torch.ones(2),), {}).tolist() for contender in found])
""")
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "[[2.0, 2.0]]"


def test_a_search_leaves_the_random_generators_as_they_are(module: Two) -> None:
    before = states()
    assert found_by(search_for(module, ARGUMENTS, among=["onnxruntime"], close=1e6))
    assert states() == before


def states() -> tuple[Any, ...]:
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state(legacy=False)["state"]["pos"]


def test_only_backends_that_are_opened_come_into_the_process() -> None:
    code = """
import sys, torch
from tests.runtime.backends.test_search import ARGUMENTS, Two, found_by, search_for
torch.manual_seed(0)
(found,) = found_by(search_for(Two().eval(), ARGUMENTS, among=["openvino"], close=1e6))
assert found.name.startswith("openvino"), found.name
assert "openvino" in sys.modules
assert not {"onnxruntime", "onnxscript", "torch._inductor.compile_fx"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])

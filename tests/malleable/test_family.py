"""What attached processes have started: it stays on their cores, or is attached itself; launchers take no part."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from copy import copy
from pathlib import Path

import pytest

from tests.malleable.processes import COMMAND, CORES, PER_CORE, line, needs_two_cores, running
from tests.waiting import eventually
from threadcast.malleable.family import ancestors, descendants
from threadcast.malleable.inherited_limit import VARIABLE, inherited_limit, record_limit
from threadcast.malleable.keeper_memory import KeeperMemory
from threadcast.malleable.limits import Cores
from threadcast.malleable.sockets import ask, socket_of

EXEC = (sys.executable, "-c", COMMAND, "exec", "--")


def masks(process: int) -> set[int]:
    """How many CPUs each thread may run on."""
    return {len(os.sched_getaffinity(int(task))) for task in os.listdir(f"/proc/{process}/task")}


PARENT = """
import os, subprocess, sys, threadcast
threadcast.attach()
two = "import threading; threading.Thread(target=input).start(); input()"
child = subprocess.Popen([sys.executable, "-c", two])
pinned = subprocess.Popen([sys.executable, "-c", "input()"])
os.sched_setaffinity(pinned.pid, {max(os.sched_getaffinity(0))})
print(child.pid, pinned.pid, flush=True)
child.wait()
"""


@needs_two_cores
def test_children_follow_the_cores_of_their_parent() -> None:
    with running(PARENT) as parent:
        child, pinned = map(int, line(parent).split())
        path, all_cores = socket_of(parent.pid), CORES * PER_CORE
        assert child in descendants(parent.pid)
        assert list(ancestors(child))[:2] == [parent.pid, os.getpid()]
        assert eventually(lambda: len(os.listdir(f"/proc/{child}/task")) == 2)
        ask(path, {"resize": 1})
        assert eventually(lambda: masks(child) == {PER_CORE})
        ask(path, {"resize": None})
        assert eventually(lambda: masks(child) == {all_cores})
        assert masks(pinned) == {1}, "what has pinned itself stays so"


ATTACHED = "import os, threadcast; threadcast.attach(); print(os.getpid(), flush=True); input()"
CHILD = f"""
import subprocess, sys, threadcast
threadcast.attach().resize(1)
subprocess.run([sys.executable, "-c", {ATTACHED!r}])
"""
REPLACED = f"""
import os, sys, threadcast
threadcast.attach().resize(1)
os.execv(sys.executable, [sys.executable, "-c", {ATTACHED!r}])
"""
LEFT = f"""
import os, subprocess, sys, threadcast
threadcast.attach().resize(1)
child = "import os, sys, time\\nwhile os.getppid() == int(sys.argv[1]): time.sleep(0.01)\\n" + {ATTACHED!r}
subprocess.Popen([sys.executable, "-c", child, str(os.getpid())], start_new_session=True)
"""
DETACHED = """
import os, threadcast
every = os.sched_getaffinity(0)
from threadcast.malleable.attach import detach
threadcast.attach().resize(1)
detach()
threadcast.attach()
print(os.getpid(), flush=True)
input()
"""


@needs_two_cores
@pytest.mark.parametrize("program", [CHILD, REPLACED, LEFT, DETACHED], ids=["child", "exec", "left", "detach"])
def test_what_a_process_has_for_now_limits_neither_what_it_starts_nor_itself_after(program: str) -> None:
    with running(program) as one:
        process = int(line(one))
        try:
            assert eventually(lambda: masks(process) == {CORES * PER_CORE})
        finally:
            os.kill(process, signal.SIGKILL)


@needs_two_cores
def test_a_mask_that_was_set_since_is_a_limit() -> None:
    own = "os.sched_setaffinity(0, every - os.sched_getaffinity(0))"
    with running(DETACHED.replace("detach()\n", f"detach()\n{own}\n")) as one:
        assert line(one) == str(one.pid)
        assert masks(one.pid) == {CORES * PER_CORE - PER_CORE}


def test_a_record_counts_on_its_machine_and_for_its_mask_only(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = os.sched_getaffinity(0)
    monkeypatch.setenv(VARIABLE, "")
    record_limit({*mask, 99}, mask)
    record = os.environ[VARIABLE]
    for text, limit in {
        record: {*mask, 99}, record.replace(f" {os.getpid()} ", " 1 "): {*mask, 99}, "x" + record: None, "": None,
        record + ",98": None, record.replace(f" {os.getpid()} ", " x "): None, record + " 1": None, record + ",x": None,
    }.items():  # fmt: skip
        monkeypatch.setenv(VARIABLE, text)
        assert inherited_limit() == limit, text


LAUNCHER = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import numpy; print('ready', flush=True); input()"])
"""


def test_a_launcher_is_not_attached_and_what_it_starts_is(
    arbitrate: Callable[[], Callable[[], None]], tmp_path: Path
) -> None:
    arbitrate()
    path = tmp_path / "threadcast" / "arbiter.sock"
    with running(LAUNCHER, *EXEC) as launcher:
        assert line(launcher) == "ready"
        (child,) = descendants(launcher.pid)
        assert eventually(lambda: [one["process"] for one in ask(path, {"who": "all"})["processes"]] == [child])
        assert not socket_of(launcher.pid).exists()


def test_what_computes_without_any_library_is_attached_too() -> None:
    with running("print('ready', flush=True)\nwhile True: pass", *EXEC) as busy:
        assert line(busy) == "ready"
        assert not socket_of(busy.pid).exists()
        assert eventually(socket_of(busy.pid).exists, within_s=60)


FORKING = """
import os
import random
import signal
print("ready", flush=True)
if os.fork() == 0:
    import numpy
input()
"""


def test_a_forked_child_of_a_launcher_is_attached_for_itself() -> None:
    with running(FORKING, *EXEC) as launcher:
        assert line(launcher) == "ready"
        assert eventually(lambda: any(socket_of(child).exists() for child in descendants(launcher.pid)))
        assert not socket_of(launcher.pid).exists()


@needs_two_cores
def test_signals_reach_a_program_that_has_not_begun_to_compute() -> None:
    with running("print('ready', flush=True); input()", *EXEC) as idle:
        assert line(idle) == "ready"
        idle.send_signal(signal.SIGUSR1)
        assert eventually(lambda: masks(idle.pid) == {(CORES - 1) * PER_CORE})
        idle.send_signal(signal.SIGUSR2)
        assert eventually(lambda: masks(idle.pid) == {CORES * PER_CORE})


THREADED = """
import sys, threading, torch, threadcast
member, said = threadcast.attach(), []
model, x = torch.nn.Linear(4, 4), torch.ones(4)
def work():
    while len(said) < 3:
        model(x)
        if not said or said[-1] != torch.get_num_threads():
            said.append(torch.get_num_threads())
            print(said[-1], flush=True)
torch.set_num_threads(2)
thread = threading.Thread(target=work)
thread.start()
for size in (1, 2):
    sys.stdin.readline()
    member.resize(size)
thread.join()
"""


@needs_two_cores
def test_thread_counts_follow_in_other_threads_too() -> None:
    with running(THREADED) as process:
        assert process.stdin is not None
        assert line(process) == "2"
        for size in ("1", "2"):
            process.stdin.write("go\n")
            process.stdin.flush()
            assert line(process) == size


@pytest.mark.parametrize("requested", [None, 3, ((0, 4), (1,))], ids=str)
def test_a_keeper_remembers_all_masks_and_the_last_request_of_the_one_before(requested: int | Cores | None) -> None:
    draws, before = random.Random(0), KeeperMemory()
    masks = {frozenset(draws.sample(range(256), 64)) for _ in range(60)}
    before.given |= masks
    for asked in (tuple((cpu,) for cpu in range(256)), requested):
        before.request(asked)
    after = copy(before)
    after.given, after.requested = set(), 1
    after.load()
    assert (after.given, after.requested) == (masks, requested)

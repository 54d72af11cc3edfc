"""Keeping freed memory, in a process of its own: it cannot be undone."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import pytest

from threadcast.threads.memory import KEEPING

SCRIPT = """
import json, resource, threading
from threadcast.threads.memory import keep_freed_memory, memory_regime

def faults_of_large_blocks(*sizes_mib):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        blocks = [bytearray(size << 20) for size in sizes_mib]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

found = {"regime": memory_regime(), "default": faults_of_large_blocks(100, 30), "told": keep_freed_memory()}
def work():
    faults_of_large_blocks(40, 50, 15)
    found["kept in a thread"] = faults_of_large_blocks(40, 50, 15)
thread = threading.Thread(target=work)
thread.start()
thread.join()
faults_of_large_blocks(100, 30)
print(json.dumps({**found, "kept": faults_of_large_blocks(100, 30), "regime after": memory_regime()}))
"""


needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")


@needs_glibc
def test_blocks_freed_and_taken_again_are_not_faulted_in_again():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert (found["regime"], found["told"], found["regime after"]) == ("returned", True, "kept")
    assert found["default"] > 10 * 100 * 2**20 / 65536  # even where the system gives 64 KiB at once
    assert found["kept"] < found["default"] / 10
    assert found["kept in a thread"] < found["default"] / 10


@needs_glibc
def test_the_variables_keep_memory_from_the_start():
    faults = []
    without = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    for environment in (without, {**without, **KEEPING}):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=environment
        )
        faults.append(json.loads(done.stdout)["default"])
    assert faults[1] < faults[0] / 5  # the first of ten rounds must fault all in


HEAPS = """
import ctypes, re, threading
from pathlib import Path
from tempfile import TemporaryDirectory
from threadcast.threads.memory import keep_freed_memory

keep_freed_memory()
waits = threading.Barrier(4)
threads = [threading.Thread(target=lambda: (bytearray(10_000), waits.wait(), waits.wait())) for _ in range(3)]
for thread in threads:
    thread.start()
waits.wait()
c = ctypes.CDLL(None)
c.fopen.restype = ctypes.c_void_p
with TemporaryDirectory() as folder:
    path = Path(folder, "malloc.xml")
    stream = ctypes.c_void_p(c.fopen(str(path).encode(), b"w"))
    c.malloc_info(0, stream)
    c.fclose(stream)
    print(len(re.findall("<heap nr=", path.read_text())))
waits.wait()
for thread in threads:
    thread.join()
"""


@needs_glibc
def test_threads_have_heaps_of_their_own():
    """They would wait, asleep, for the lock of the one that they share: in each step by a plan (decision 8)."""
    without = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", HEAPS], capture_output=True, text=True, check=True, env=without)
    assert int(done.stdout) >= 4


RETURNING = """
import json
from pathlib import Path
from threadcast.threads.memory import keep_freed_memory, return_freed_memory

def resident_kb():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

keep_freed_memory()
blocks = [bytearray(1 << 20) for _ in range(100)]
last = bytearray(1 << 20)
found = [resident_kb()]
del blocks
found.append(resident_kb())
return_freed_memory()
print(json.dumps([*found, resident_kb()]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_kept_memory_can_be_returned_also_from_below_what_is_still_used():
    done = subprocess.run([sys.executable, "-c", RETURNING], capture_output=True, text=True, check=True)
    used, kept, returned = json.loads(done.stdout)
    assert kept > used - 10_000
    assert returned < kept - 90_000

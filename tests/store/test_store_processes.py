"""Several processes on one store, full disks, and processes that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.waiting import HANGS_S
from threadcast.core import Measurement
from threadcast.core.errors import StoreError
from threadcast.store import Store
from threadcast.store.store import Counts

Measure = Callable[..., Measurement]

WRITER = """
import sys
from threadcast.core import Case, Machine, Measurement, Op, Sample
from threadcast.store import Store

path, writer, batches = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
machine = Machine.uniform("bench", 4)
with Store.open(path) as store:
    for batch in range(batches):
        ops = [Op("mm", attributes={"batch": batch, "shared": i}) for i in range(5)]  # every writer has the same ops
        ops.append(Op("mm", attributes={"batch": batch, "writer": writer}))
        store.add([Measurement(op, machine, Case(1), (Sample(1.0),) * 3) for op in ops])
        print(batch, flush=True)
"""


def start_writer(place: Path | str, *, writer: int = 0, batches: int = 1_000_000) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WRITER, str(place), str(writer), str(batches)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_concurrent_writers_lose_nothing_even_when_they_all_start_the_store(store_url: Path | str) -> None:
    writers = [start_writer(store_url, writer=i, batches=25) for i in range(4)]
    for process in writers:
        process.communicate(timeout=HANGS_S)
    assert [process.returncode for process in writers] == [0] * 4
    with Store.open(store_url) as store:
        assert store.counts() == Counts(machines=1, ops=25 * (5 + 4), measurements=4 * 25 * 6, samples=1800, graphs=0)
        assert store.check() == []
    if isinstance(store_url, Path):
        assert os.listdir(store_url.parent) == [store_url.name]


@pytest.mark.parametrize("acknowledged", [1, 7, 20])
def test_a_killed_writer_loses_only_what_was_not_acknowledged(store_url: Path | str, acknowledged: int) -> None:
    with start_writer(store_url) as process:
        assert process.stdout is not None
        last = [int(process.stdout.readline()) for _ in range(acknowledged)][-1]
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
    last = max([last, *map(int, rest)])
    with Store.open(store_url) as store:
        batches = store.counts().measurements // 6
        assert batches * 6 == store.counts().measurements
        assert batches in (last + 1, last + 2)
        assert store.check() == []
        assert store.add(store.measurements()) == batches * 6


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs; the test above drives the same path by a page limit")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.needs_root
def test_a_full_file_system_is_an_error_that_loses_nothing(small_disk: Path, measure: Measure) -> None:
    with Store.open(small_disk / "store.sqlite") as store:
        store.add([measure()])
        with pytest.raises(StoreError, match=r"full|I/O"):
            store.add([measure(i) for i in range(1, 5000)])
        assert store.measurements() == [measure()]
        store.add([measure(2)])
        assert store.check() == []


@pytest.mark.needs_root
@pytest.mark.parametrize("free_kib", [0, 4, 16, 64])
def test_a_store_that_the_disk_has_no_room_for_is_not_made(small_disk: Path, free_kib: int) -> None:
    (small_disk / "other").write_bytes(b"x" * (512 - free_kib) * 1024)
    with pytest.raises(StoreError, match=r"full|I/O|No space"):
        Store.open(small_disk / "store.sqlite")
    assert os.listdir(small_disk) == ["other"]


def test_a_writer_waits_for_a_lock_and_then_says_who_holds_it(store_path: Path, measure: Measure) -> None:
    with Store.open(store_path, wait_s=0.05) as store, Store.open(store_path) as holder:

        def work(_connection: object) -> None:
            assert store.measurements() == []  # readers are not held up
            with pytest.raises(StoreError, match="locked by another process"):
                store.add([measure()])

        holder._database.write(work)
        assert store.add([measure()]) == 1

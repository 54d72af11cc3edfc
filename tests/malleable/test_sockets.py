"""Where sockets are made: in place of nothing but one that was left behind, and with nothing else changed."""

from __future__ import annotations

import grp
import multiprocessing
import os
import selectors
import socket
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from threading import BrokenBarrierError

import pytest

from threadcast.core import read_machine
from threadcast.core.errors import InvalidInput
from threadcast.malleable.arbiter import Arbiter
from threadcast.malleable.process_socket import ProcessSocket
from threadcast.malleable.sockets import is_alive, listen, socket_of

GROUP = grp.getgrgid(os.getgid()).gr_name


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("mine")
    with pytest.raises(InvalidInput, match="no socket"):
        listen(tmp_path / "train.py")
    assert (tmp_path / "train.py").read_text() == "mine"
    assert os.listdir(tmp_path) == ["train.py"]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("file/a.sock", "cannot be a folder"), ("file/folder/a.sock", "cannot be a folder"), ("x" * 108, "too long"),
        ("/proc/a.sock", "no socket can be made in /proc: "), ("open/a.sock", "open to all"),
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_where_no_socket_can_be_is_refused(tmp_path: Path, path: str, why: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(InvalidInput, match=why):
        listen(tmp_path / path)


def test_a_folder_of_the_user_s_keeps_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o711)
    listen(tmp_path / "mine" / "a.sock", group=GROUP).close()
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o711
    assert (tmp_path / "mine" / "a.sock").stat().st_mode & 0o777 == 0o660


@pytest.mark.parametrize("folder", ["threadcast", "new"], ids=["usual", "made here"])
def test_a_folder_for_sockets_is_opened_to_the_group(tmp_path: Path, folder: str) -> None:
    if folder == "threadcast":
        (tmp_path / folder).mkdir(mode=0o700)
    listen(tmp_path / folder / "a.sock", group=GROUP).close()
    assert (tmp_path / folder).stat().st_mode & 0o777 == 0o750


def test_a_socket_that_has_been_replaced_is_left_to_its_owner(tmp_path: Path) -> None:
    arbiter_path, process_path = tmp_path / "a.sock", tmp_path / "1.sock"
    with selectors.DefaultSelector() as selector:
        arbiter, process = Arbiter(read_machine(), arbiter_path), ProcessSocket(process_path, selector, lambda _: {})
        for path, first in ((arbiter_path, arbiter), (process_path, process)):
            path.unlink()
            with listen(path):
                first.close()
                assert is_alive(path)
        process = ProcessSocket(process_path, selector, lambda _: {})
        process.close()
    assert not process_path.exists()


def test_an_arbiter_removes_the_sockets_of_killed_processes_only() -> None:
    ended = multiprocessing.get_context("fork").Process(target=int)
    ended.start()
    ended.join()
    gone, stopped, alive = socket_of(ended.pid or 0), socket_of(os.getpid()), socket_of(2**22 + 1)
    listen(gone).close()
    listen(stopped).close()
    with listen(alive):  # of another container's process
        Arbiter(read_machine(), gone.with_name("arbiter.sock")).close()
        assert sorted(os.listdir(gone.parent)) == sorted([stopped.name, alive.name])


def test_what_a_killed_process_of_the_same_number_left_is_in_nobody_s_way(tmp_path: Path) -> None:
    (tmp_path / f".{os.getpid()}.a.sock").touch()
    listen(tmp_path / "a.sock").close()
    assert os.listdir(tmp_path) == ["a.sock"]


def test_one_that_has_no_room_for_more_listens_nevertheless(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as first:
        busy.bind(str(tmp_path / "a.sock"))
        busy.listen(0)
        first.connect(str(tmp_path / "a.sock"))
        with pytest.raises(InvalidInput, match="in use"):
            listen(tmp_path / "a.sock")


def _listening(path: Path, together: Barrier, said: Connection) -> None:
    together.wait()
    try:
        held = listen(path)
    except InvalidInput:
        said.send(False)
        return
    said.send(True)
    with suppress(BrokenBarrierError):
        together.wait()
    held.close()


@pytest.mark.system
def test_of_those_that_come_at_the_same_time_one_listens(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    for number in range(30):
        path, together = tmp_path / f"{number}.sock", fork.Barrier(3)
        heard, said = fork.Pipe(duplex=False)
        both = [fork.Process(target=_listening, args=(path, together, said)) for _ in range(2)]
        for one in both:
            one.start()
        together.wait(30)
        answers = sorted(heard.recv() for _ in both)
        together.abort()
        for one in both:
            one.join(30)
        assert answers == [False, True], f"round {number}"

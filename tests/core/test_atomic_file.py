from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from threadcast.core.atomic_file import replacing
from threadcast.core.errors import ServiceUnavailable


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path) as draft:
        draft.write_text("new")
        assert path.read_text() == "old"
    assert (path.read_text(), os.listdir(tmp_path)) == ("new", ["file"])


def test_an_exception_leaves_what_was_there(tmp_path: Path) -> None:
    def fail() -> None:
        with replacing(tmp_path / "file") as draft:
            draft.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert os.listdir(tmp_path) == []


def test_a_link_is_followed_and_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    with replacing(tmp_path / "link") as draft:
        draft.write_text("through")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "through"
    os.mkfifo(tmp_path / "pipe")
    with replacing(tmp_path / "pipe") as draft:
        assert draft == tmp_path / "pipe"
    assert (tmp_path / "pipe").is_fifo()


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, replacing(tmp_path / "absent" / "file"):
        pass
    assert caught.value.filename == str(tmp_path / "absent")


def test_errors_that_name_no_file_name_the_final_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    with pytest.raises(OSError, match="No space") as caught, replacing(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(path)
    with pytest.raises(ServiceUnavailable) as unavailable, replacing(path):
        raise ServiceUnavailable("it does not answer")
    assert str(unavailable.value) == "it does not answer"

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space") as caught, replacing(path) as draft:
        draft.write_text("new")
    assert caught.value.filename == str(path)
    assert os.listdir(tmp_path) == []

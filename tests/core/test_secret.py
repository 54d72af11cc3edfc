"""A key that is carried about and never shown."""

from __future__ import annotations

import copy
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from threadcast.core.errors import InvalidInput
from threadcast.core.secret import Secret
from threadcast.core.settings import Settings

KEY = "tc_5ecret-K3y"


def test_only_reveal_gives_the_text() -> None:
    secret = Secret(KEY)
    assert secret.reveal() == KEY
    for shown in (repr(secret), str(secret), f"{secret}", f"{secret!r:>40}", repr({"key": [secret]})):
        assert KEY not in shown


@pytest.mark.parametrize("text", ["", "two words", "line\r\nX-Evil: 1", "tab\t", "ключ", "\x00", "x" * 1025])
def test_what_cannot_stand_in_a_header_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Secret(text)
    assert not text or text not in str(refused.value)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy], ids=["pickled", "copied"])
def test_it_is_not_copied_out_of_the_process(copied: Callable[[object], object]) -> None:
    with pytest.raises(TypeError, match="not written"):
        copied(Secret(KEY))


def test_a_file_holds_the_key_and_white_space(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"\n {KEY}\r\n")
    assert Secret.read(file).reveal() == KEY


@pytest.mark.parametrize("content", [b"", b"two words", b"one\ntwo", b"\xff" + KEY.encode(), b"x" * 10_000])
def test_a_file_that_holds_no_key_is_refused_by_name_and_not_quoted(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match=str(file)) as refused:
        Secret.read(file)
    shown = "".join(traceback.format_exception(refused.value))
    assert KEY not in shown


def test_a_key_among_the_settings_is_not_shown(tmp_path: Path) -> None:
    settings = Settings.read(directory=tmp_path, environment={"HOME": str(tmp_path), "THREADCAST_PREDICTOR_KEY": KEY})
    assert settings["predictor.key"].reveal() == KEY
    assert KEY not in repr(settings)

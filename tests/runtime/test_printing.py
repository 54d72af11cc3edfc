# ruff: noqa: T201
"""What a model or a loss prints, logs, warns of or reads of files and clocks is as in PyTorch: once in each call."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import threadcast
from threadcast.capture.guards.printing import not_shown
from threadcast.core.errors import CaptureError
from threadcast.runtime.tuner.tuning import Tuning

pytestmark = pytest.mark.usefixtures("one_thread", "planned_at_once")

_logger = logging.getLogger("of a user")


class Progress:
    """As bars of progress are: keeps the stream that is there when it is made."""

    def __init__(self) -> None:
        self.file = sys.stderr

    def show(self, text: str) -> None:
        self.file.writelines([text, "\r"])
        self.file.flush()


class Saying(nn.Module):
    def __init__(self, say: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.layer, self.say = nn.Linear(3, 3).double(), say

    def forward(self, x: Tensor) -> Tensor:
        self.say(x)
        found: Tensor = self.layer(x)
        return found


def warn(_: Tensor) -> None:
    warnings.warn("of a user", UserWarning, stacklevel=1)


SAYS: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "print": (lambda x: print("said", x.shape, x), "prints"),
    "to the stream of errors": (lambda x: print("said", type(x), file=sys.stderr, flush=True), "prints"),
    "write": (lambda x: sys.stdout.write(f"said {x}\n"), "prints"),
    "a bar of progress": (lambda _: Progress().show("said"), "prints"),
    "a log": (lambda x: _logger.warning("said of %s", x), "logs"),
    "a warning": (warn, "warns"),
}


@pytest.mark.parametrize("where", ["model", "loss"])
@pytest.mark.parametrize(("say", "does"), SAYS.values(), ids=list(SAYS))
def test_what_calls_say_is_said_once_in_each_call(
    say: Callable[[Tensor], object], does: str, where: str, capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    model, x = Saying(say if where == "model" else bool_of), torch.ones(2, 3, dtype=torch.float64)

    def loss(found: Tensor, wanted: Tensor) -> Tensor:
        if where == "loss":
            say(found)
        return mse_loss(found, wanted)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        closing(threadcast.optimize_training(model, loss, optimizer, x, x, cores=1)) as step,
        warnings.catch_warnings(record=True) as warned,
    ):
        warnings.simplefilter("always")
        for _ in range(10):
            step(x, x)
        assert f"it {does} in each call" in step.reports[0].reason
        assert not step.learning
    shown = capsys.readouterr()
    printed = shown.out + shown.err
    assert "Fake" not in printed + caplog.text
    said = sum(record.name == "of a user" for record in caplog.records)
    of_user = sum(str(one.message) == "of a user" for one in warned)
    assert (printed.count("said"), said, of_user) == tuple(10 * (does == one) for one in ("prints", "logs", "warns"))


READS: dict[str, tuple[Callable[[Path], float], str]] = {
    "a clock": (lambda _: time.monotonic_ns() % 997, "reads a clock"),
    "random bytes": (lambda _: os.urandom(1)[0], "draws random numbers"),
    "a generator": (lambda _: float(np.random.default_rng().random()), "draws random numbers"),
    "an identifier": (lambda _: uuid.uuid4().int % 997, "draws random numbers"),
    "a file": (lambda path: len(path.read_text()), "opens a file"),
    "a file that is there": (lambda path: 1.0 + path.exists() + os.path.getsize(path), "looks at a file"),
    "a folder": (lambda path: len(os.listdir(path.parent)), "looks at a folder"),
    "an array": (lambda path: float(np.load(path.with_suffix(".npy"))[0]), "opens a file"),
    "a tensor": (lambda path: float(torch.load(path.with_suffix(".pt"), weights_only=True)[0]), "opens a file"),
}


@pytest.mark.parametrize(("read", "does"), READS.values(), ids=list(READS))
def test_what_calls_read_of_files_and_clocks_is_read_in_each_call(
    read: Callable[[Path], float], does: str, tmp_path: Path
) -> None:
    path, found = tmp_path / "text", list[float]()

    def write(number: int) -> None:
        path.write_text("1" * number)
        (tmp_path / str(number)).touch()
        np.save(path.with_suffix(".npy"), np.full(1, number))
        torch.save(torch.full((1,), number), path.with_suffix(".pt"))

    def scaled(x: Tensor) -> Tensor:
        return x * read(path)

    with closing(threadcast.optimize(scaled, cores=1, backends=False)) as call:
        write(1)
        with pytest.warns(UserWarning, match=f"it {does} in each call"):
            found += [float(call(torch.ones(1))) for _ in range(2)]
        for number in range(2, 8):
            write(number)
            found.append(float(call(torch.ones(1))))
        assert does in call.reports[0].reason
    assert len(set(found)) > 1
    if does == "opens a file":
        assert found == [1, 1, *range(2, 8)]


def bool_of(_: Tensor) -> bool:
    return True


@pytest.mark.parametrize("say", [lambda _: _logger.debug("said"), lambda _: None, warn], ids=["debug", "none", "warn"])
def test_what_is_not_shown_in_each_call_hinders_no_plan(say: Callable[[Tensor], object]) -> None:
    model, x = Saying(say).eval(), torch.ones(2, 3, dtype=torch.float64)
    with (
        closing(threadcast.optimize(model, cores=1, backends=False)) as call,
        warnings.catch_warnings(),
        torch.no_grad(),
    ):
        warnings.simplefilter("ignore" if say is warn else "error")
        for _ in range(5):
            torch.testing.assert_close(call(x), model(x))
        assert isinstance(call._optimized._last, Tuning)


def test_what_only_the_first_call_prints_hinders_no_plan(capsys: pytest.CaptureFixture[str]) -> None:
    class Once(nn.Module):
        told = False

        def forward(self, x: Tensor) -> Tensor:
            if not self.told:
                print("said")
                self.told = True
            return x * 2

    model, x = Once(), torch.ones(3)
    with closing(threadcast.optimize(model, cores=1, backends=False)) as call:
        for _ in range(6):
            assert call(x).equal(x * 2)
        assert isinstance(call._optimized._last, Tuning)
    assert capsys.readouterr().out == "said\n"


def test_what_is_kept_meanwhile_reads_and_shows_afterwards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with not_shown():
        kept, stream = (time.time, open, os.stat), sys.stdout
        with pytest.raises(CaptureError, match="reads a clock"):
            kept[0]()
        stream.write("of a capture")
    stream.write("of a user")
    assert capsys.readouterr().out == "of a user"
    assert kept[0]() > 0
    with kept[1](tmp_path / "text", "w") as file:
        file.write("said")
    assert kept[2](tmp_path / "text").st_size == 4


def test_other_threads_print_while_one_captures(capsys: pytest.CaptureFixture[str]) -> None:
    def other() -> None:
        print("of another thread")
        _logger.warning("of another thread")

    before: Any = (sys.stdout, logging.Logger.callHandlers, warnings.warn)
    with not_shown() as said:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        logging.getLogger("torch").warning("of a compiler")
        assert said == []
        print("of this one")
        assert said == ["prints", "prints"]
    assert (sys.stdout, logging.Logger.callHandlers, warnings.warn) == before
    shown = capsys.readouterr()
    assert "of another thread" in shown.out
    assert "of this one" not in shown.out + shown.err
    assert "compiler" not in shown.out + shown.err


class Wrapper:
    """Passes all attributes on, also those that are set, as tqdm's files do."""

    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        object.__setattr__(self, "inner", inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)


def test_a_stream_may_be_of_any_class(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", Wrapper(stream))
    before = sys.stdout, time.time, open
    with not_shown() as said:
        print("of this one")
    print("of a user")
    assert (sys.stdout, time.time, open) == before
    assert (said, stream.getvalue()) == (["prints", "prints"], "of a user\n")
    assert "write" not in vars(stream)


def test_a_stream_that_is_exchanged_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with not_shown():
        sys.stdout = others = io.StringIO()
    assert sys.stdout is others

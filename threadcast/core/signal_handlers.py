"""Tells exceptions of signal handlers from those of the code that they interrupt."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from threadcast.core.errors import in_one_line


def raised_by_signal_handler(error: BaseException) -> bool:
    """Return whether a signal handler has raised `error`, which is then for the program, whatever it has interrupted.

    Python calls handlers with the frame that they interrupt; that is how they are known, in the error's traceback.
    """
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        for value in frame.f_locals.values():
            given = value if type(value) is tuple else (value,)
            if frame.f_back is not None and any(one is frame.f_back for one in given):
                return True
        trace = trace.tb_next
    return False


class Failure:
    """A context that ends where the code within raises what `among` says true of, and then holds that as `error`.

    What a signal handler raises goes on, and what is no `Exception`: it is for the program. The error has no traceback,
    which would keep alive what the frames refer to.
    """

    __slots__ = ("_among", "error")

    def __init__(self, among: Callable[[Exception], bool] = lambda _: True) -> None:
        self._among = among
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception) or raised_by_signal_handler(error) or not self._among(error):
            return False
        self.error = error.with_traceback(None)
        return True

    def __str__(self) -> str:
        """The error in one line; "" where there was none."""
        return "" if self.error is None else in_one_line(self.error)

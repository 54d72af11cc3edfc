"""Tells exceptions of signal handlers from those of the code that they interrupt."""

from __future__ import annotations


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
